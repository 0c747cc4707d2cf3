-- Names of the keys, as in keys.py: put before every function. `docs/dispatch.md` tells what each holds.

local STREAM = 'dispatch:stream'
local WORKERS = 'dispatch:workers'

local function generation_key(generation) return 'dispatch:generation:' .. generation end
local function log_key(generation) return 'dispatch:log:' .. generation end
local function presence_key(generation) return 'dispatch:presence:' .. generation end

local function ledger_key(model) return 'dispatch:ledger:' .. model end
local function places_key(model) return 'dispatch:places:' .. model end
local function leases_key(model) return 'dispatch:leases:' .. model end
local function ranks_key(model) return 'dispatch:ranks:' .. model end
local function skips_key(model) return 'dispatch:skips:' .. model end
local function virtual_key(model) return 'dispatch:virtual:' .. model end
local function wake_channel(model) return 'dispatch:wake:' .. model end

local function queue_key(model, rank) return 'dispatch:queue:' .. model .. ':' .. rank end
local function tenants_key(model, rank) return 'dispatch:tenants:' .. model .. ':' .. rank end
local function finishes_key(model, rank) return 'dispatch:finishes:' .. model .. ':' .. rank end
local function fifo_key(model, rank, tenant) return 'dispatch:fifo:' .. model .. ':' .. rank .. ':' .. tenant end

local function cancels_key(worker) return 'dispatch:cancels:' .. worker end
local function heartbeat_key(worker) return 'dispatch:heartbeat:' .. worker end
