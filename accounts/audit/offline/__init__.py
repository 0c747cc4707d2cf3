"""What runs without Signalbox: the script that an auditor checks exports and archives with."""
