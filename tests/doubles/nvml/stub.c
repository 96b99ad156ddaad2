/* A libnvidia-ml.so.1 for tests: the symbols that hwal asks, answered from a file of `key value` lines.
 *
 * NVML_STUB names the file. `fail.nvmlInit_v2 18` makes a call fail with that code, `gpu.2.fail.nvmlDeviceGetUUID 15` for one
 * GPU. A symbol is left out by compiling with -DWITHOUT_<name>. Handles are 1 + the GPU's number; those of MIG instances
 * 1000 + 100 × GPU + instance. Struct layouts are nvml.h's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned int uint;
typedef void *handle;
enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

enum { SLOTS = 1 << 14 }; /* a table of the lines by their keys: 16 GPUs have some 2,500 */
static char *text = NULL;
static struct { const char *key, *value; } slots[SLOTS];

static uint slot_of(const char *key) {
    uint hash = 2166136261u;
    for (const char *at = key; *at; at++) hash = (hash ^ (unsigned char)*at) * 16777619u;
    uint slot = hash % SLOTS;
    while (slots[slot].key && strcmp(slots[slot].key, key)) slot = (slot + 1) % SLOTS;
    return slot;
}

static const char *look(const char *key) { return slots[slot_of(key)].value; }

/* Cuts the text into keys and values in place; the first line of a key counts. */
static void index_lines(void) {
    memset(slots, 0, sizeof slots);
    for (char *line = text; line && *line;) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        char *space = strchr(line, ' ');
        if (space) {
            *space = 0;
            uint slot = slot_of(line);
            if (!slots[slot].key) { slots[slot].key = line; slots[slot].value = space + 1; }
        }
        line = end ? end + 1 : NULL;
    }
}

static long number(const char *key, long otherwise) {
    const char *value = look(key);
    return value ? strtol(value, NULL, 0) : otherwise;
}

/* `gpu.3.name`, or `gpu.3.mig.1.name` */
static const char *name_of(handle device, const char *field) {
    static char key[160];
    long id = (long)device;
    if (id >= 1000) snprintf(key, sizeof key, "gpu.%ld.mig.%ld.%s", (id - 1000) / 100, (id - 1000) % 100, field);
    else snprintf(key, sizeof key, "gpu.%ld.%s", id - 1, field);
    return key;
}

static int fails(handle device, const char *call) {
    char key[160];
    snprintf(key, sizeof key, "fail.%s", call);
    long code = number(key, 0);
    if (!code && device) {
        snprintf(key, sizeof key, "fail.%s", call);
        char own[160];
        snprintf(own, sizeof own, "%s", key);
        code = number(name_of(device, own), 0);
    }
    return (int)code;
}

#define BEGIN(device, call) do { int code = fails(device, call); if (code) return code; } while (0)

static int copy(char *out, uint size, const char *value) {
    if (!value) return NOT_SUPPORTED;
    snprintf(out, size, "%s", value);
    return SUCCESS;
}

int nvmlInit_v2(void) {
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 9;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    free(text);
    text = calloc((size_t)size + 1, 1);
    if (fread(text, 1, (size_t)size, file) != (size_t)size) { fclose(file); return 999; }
    fclose(file);
    index_lines();
    BEGIN(NULL, "nvmlInit_v2");
    return SUCCESS;
}
int nvmlInitWithFlags(uint flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) {
    switch (code) {
        case 4: return "Insufficient Permissions";
        case 9: return "Driver Not Loaded";
        case 15: return "GPU is lost";
        case 18: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}
int nvmlSystemGetDriverVersion(char *out, uint size) {
    BEGIN(NULL, "nvmlSystemGetDriverVersion");
    return copy(out, size, look("driver"));
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    BEGIN(NULL, "nvmlSystemGetCudaDriverVersion_v2");
    *out = (int)number("cuda", 0);
    return *out ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetCount_v2(uint *out) {
    BEGIN(NULL, "nvmlDeviceGetCount_v2");
    *out = (uint)number("gpus", 0);
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(uint index, handle *out) {
    *out = (handle)(long)(index + 1);
    BEGIN(*out, "nvmlDeviceGetHandleByIndex_v2");
    return index < number("gpus", 0) ? SUCCESS : INVALID;
}
int nvmlDeviceGetUUID(handle device, char *out, uint size) {
    BEGIN(device, "nvmlDeviceGetUUID");
    return copy(out, size, look(name_of(device, "uuid")));
}
int nvmlDeviceGetName(handle device, char *out, uint size) {
    BEGIN(device, "nvmlDeviceGetName");
    return copy(out, size, look(name_of(device, "name")));
}

typedef struct { char legacy[16]; uint domain, bus, device, ids, subsystem; char id[32]; } pci;

static int place(pci *out, const char *value) {
    if (!value) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    snprintf(out->id, sizeof out->id, "%s", value);
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(handle device, pci *out) {
    BEGIN(device, "nvmlDeviceGetPciInfo_v3");
    return place(out, look(name_of(device, "pci")));
}
int nvmlDeviceGetMemoryInfo(handle device, unsigned long long *out) {
    BEGIN(device, "nvmlDeviceGetMemoryInfo");
    const char *value = look(name_of(device, "memory"));
    if (!value) return NOT_SUPPORTED;
    out[0] = strtoull(value, NULL, 0);
    out[2] = (unsigned long long)number(name_of(device, "used"), 0);
    out[1] = out[0] - out[2];
    return SUCCESS;
}
struct process { uint pid; unsigned long long memory; uint instance, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(handle device, uint *count, struct process *out) {
    BEGIN(device, "nvmlDeviceGetComputeRunningProcesses");
    const char *value = look(name_of(device, "processes"));
    if (!value) return NOT_SUPPORTED;
    uint room = *count, found = 0;
    for (char *next; *value; value = next) {
        long pid = strtol(value, &next, 10);
        if (next == value) break;
        if (found++ < room) out[found - 1] = (struct process){(uint)pid, 1u << 30, 0xFFFFFFFFu, 0xFFFFFFFFu};
    }
    *count = found;
    return found > room ? 7 : SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor) {
    BEGIN(device, "nvmlDeviceGetCudaComputeCapability");
    const char *value = look(name_of(device, "capability"));
    return value && sscanf(value, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetMigMode(handle device, uint *now, uint *later) {
    BEGIN(device, "nvmlDeviceGetMigMode");
    const char *value = look(name_of(device, "mig"));
    if (!value) return NOT_SUPPORTED;
    *now = *later = (uint)atoi(value);
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(handle device, uint *out) {
    BEGIN(device, "nvmlDeviceGetMaxMigDeviceCount");
    *out = 7;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(handle device, uint index, handle *out) {
    BEGIN(device, "nvmlDeviceGetMigDeviceHandleByIndex");
    *out = (handle)(1000 + 100 * ((long)device - 1) + (long)index);
    return look(name_of(*out, "uuid")) ? SUCCESS : NOT_FOUND;
}

/* `gpu.0.link.5 1 26562 2 0000:05:00.0`: up, MB/s, type of the remote end, its address */
static const char *link_of(handle device, uint link) {
    char field[32];
    snprintf(field, sizeof field, "link.%u", link);
    return look(name_of(device, field));
}
int nvmlDeviceGetNvLinkState(handle device, uint link, uint *out) {
    BEGIN(device, "nvmlDeviceGetNvLinkState");
    const char *value = link_of(device, link);
    if (!value) return INVALID;
    *out = (uint)atoi(value);
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(handle device, uint link, uint *out) {
    BEGIN(device, "nvmlDeviceGetNvLinkRemoteDeviceType");
    const char *value = link_of(device, link);
    return value && sscanf(value, "%*d %*d %u", out) == 1 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle device, uint link, pci *out) {
    BEGIN(device, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    const char *value = link_of(device, link);
    char peer[32];
    return value && sscanf(value, "%*d %*d %*d %31s", peer) == 1 ? place(out, peer) : NOT_SUPPORTED;
}

typedef struct { uint field, scope; long long stamp, latency; int kind, code; union { uint whole; double real; unsigned long long wide; } value; } sample;

int nvmlDeviceGetFieldValues(handle device, int count, sample *samples) {
    BEGIN(device, "nvmlDeviceGetFieldValues");
    for (int i = 0; i < count; i++) {
        const char *value = samples[i].field == 164 ? link_of(device, samples[i].scope) : NULL;
        uint speed = 0;
        samples[i].code = value && sscanf(value, "%*d %u", &speed) == 1 && !number("old-fields", 0) ? SUCCESS : NOT_SUPPORTED;
        samples[i].kind = 1;
        samples[i].value.whole = speed;
        if (samples[i].field == 90 && (speed = (uint)number("speed-of-all", 0))) {
            samples[i].value.whole = speed;
            samples[i].code = SUCCESS;
        }
        const char *limit = samples[i].field == 194 ? look(name_of(device, "slowdown_margin")) : NULL;
        if (limit) {
            samples[i].kind = 5;
            samples[i].value.whole = (uint)atoi(limit);
            samples[i].code = SUCCESS;
        }
    }
    return SUCCESS;
}

/* `pair.0.1 30 0`: nvmlGpuTopologyLevel_t, nvmlGpuP2PStatus_t */
static int pair_of(handle one, handle other, int *level, int *status) {
    char key[64];
    long a = (long)one - 1, b = (long)other - 1;
    snprintf(key, sizeof key, "pair.%ld.%ld", a < b ? a : b, a < b ? b : a);
    const char *value = look(key);
    return value && sscanf(value, "%d %d", level, status) == 2 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetTopologyCommonAncestor(handle one, handle other, int *out) {
    int status;
    BEGIN(one, "nvmlDeviceGetTopologyCommonAncestor");
    return pair_of(one, other, out, &status);
}
#ifndef WITHOUT_nvmlDeviceGetP2PStatus
int nvmlDeviceGetP2PStatus(handle one, handle other, int index, int *out) {
    int level;
    if (index != 0) return INVALID; /* hwal asks for reading */
    BEGIN(one, "nvmlDeviceGetP2PStatus");
    return pair_of(one, other, &level, out);
}
#endif

typedef struct { uint version; unsigned char cluster[16]; int status; uint clique; uint state; uint health; } fabric;

#ifndef WITHOUT_nvmlDeviceGetGpuFabricInfoV
int nvmlDeviceGetGpuFabricInfoV(handle device, fabric *out) {
    BEGIN(device, "nvmlDeviceGetGpuFabricInfoV");
    const char *value = look(name_of(device, "fabric")); /* state, first byte of the cluster, clique */
    uint first = 0;
    if (!value || sscanf(value, "%u %u %u", &out->state, &first, &out->clique) != 3) return NOT_SUPPORTED;
    memset(out->cluster, 0, sizeof out->cluster);
    out->cluster[0] = (unsigned char)first;
    out->status = SUCCESS;
    out->health = (uint)number(name_of(device, "health"), 0);
    return SUCCESS;
}
#endif

/* health: one number each, `gpu.0.temperature 45`; pairs as two */
#define ONE(call, type, field)                                  \
    int call(handle device, type *out) {                        \
        BEGIN(device, #call);                                   \
        const char *value = look(name_of(device, field));       \
        if (!value) return NOT_SUPPORTED;                       \
        *out = (type)strtoull(value, NULL, 0);                  \
        return SUCCESS;                                         \
    }
#define OF(call, field)                                         \
    int call(handle device, uint which, uint *out) {            \
        BEGIN(device, #call);                                   \
        (void)which;                                            \
        const char *value = look(name_of(device, field));       \
        if (!value) return NOT_SUPPORTED;                       \
        *out = (uint)atoi(value);                               \
        return SUCCESS;                                         \
    }
ONE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle")
ONE(nvmlDeviceGetVirtualizationMode, uint, "virtualization")
ONE(nvmlDeviceGetPowerManagementLimit, uint, "power")
ONE(nvmlDeviceGetPowerManagementDefaultLimit, uint, "default_power")
ONE(nvmlDeviceGetPerformanceState, uint, "state")
ONE(nvmlDeviceGetPersistenceMode, uint, "persistence")
ONE(nvmlDeviceGetCurrPcieLinkGeneration, uint, "generation")
ONE(nvmlDeviceGetMaxPcieLinkGeneration, uint, "max_generation")
ONE(nvmlDeviceGetCurrPcieLinkWidth, uint, "width")
ONE(nvmlDeviceGetMaxPcieLinkWidth, uint, "max_width")
ONE(nvmlDeviceGetRetiredPagesPendingStatus, uint, "retired")
OF(nvmlDeviceGetTemperature, "temperature")
OF(nvmlDeviceGetTemperatureThreshold, "slowdown")

struct margin { uint version; int left; };
int nvmlDeviceGetMarginTemperature(handle device, struct margin *out) {
    BEGIN(device, "nvmlDeviceGetMarginTemperature");
    const char *value = look(name_of(device, "margin"));
    if (!value) return NOT_SUPPORTED;
    out->left = atoi(value);
    return SUCCESS;
}
int nvmlDeviceGetEccMode(handle device, uint *now, uint *later) {
    BEGIN(device, "nvmlDeviceGetEccMode");
    const char *value = look(name_of(device, "ecc"));
    return value && sscanf(value, "%u %u", now, later) == 2 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetRemappedRows(handle device, uint *corrected, uint *uncorrected, uint *pending, uint *failed) {
    BEGIN(device, "nvmlDeviceGetRemappedRows");
    const char *value = look(name_of(device, "rows"));
    *corrected = *uncorrected = 0;
    return value && sscanf(value, "%u %u", pending, failed) == 2 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetTotalEccErrors(handle device, uint kind, uint counter, unsigned long long *out) {
    BEGIN(device, "nvmlDeviceGetTotalEccErrors");
    const char *value = kind == 1 && counter == 0 ? look(name_of(device, "uncorrected")) : NULL;
    if (!value) return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return SUCCESS;
}
int nvmlDeviceGetNvLinkErrorCounter(handle device, uint link, uint counter, unsigned long long *out) {
    BEGIN(device, "nvmlDeviceGetNvLinkErrorCounter");
    if (!link_of(device, link)) return INVALID;
    *out = counter == 0 ? (unsigned long long)number(name_of(device, "replays"), 0) : 0;
    return SUCCESS;
}
