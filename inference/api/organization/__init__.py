"""Administration in the shapes of OpenAI's: projects (our tenants), their keys, rate limits, usage and costs."""
