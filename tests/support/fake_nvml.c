/* NVML's C interface for two GPUs with known values: `libnvidia-ml.so.1` of the tests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT 2
#define NOT_SUPPORTED 3
#define DRIVER_NOT_LOADED 9

typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned long long referenceTime, violationTime; } Violation;

static int handles[COUNT] = {0, 1};
static const unsigned int milliwatts[COUNT] = {400000, 300000};

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return getenv("FAKE_NVML_NO_DRIVER") ? DRIVER_NOT_LOADED : 0;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "an error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned int length) {
    snprintf(text, length, "580.65.06");
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }

int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = getenv("FAKE_NVML_NO_GPU") ? 0 : COUNT;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **gpu) { *gpu = &handles[index]; return 0; }
int nvmlDeviceGetUUID(int *gpu, char *text, unsigned int length) {
    snprintf(text, length, "GPU-0000000%d-aaaa", *gpu);
    return 0;
}
int nvmlDeviceGetName(int *gpu, char *text, unsigned int length) {
    (void)gpu;
    snprintf(text, length, "NVIDIA \"Fake\" 80GB");
    return 0;
}
int nvmlDeviceGetPowerUsage(int *gpu, unsigned int *value) { *value = milliwatts[*gpu]; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(int *gpu, unsigned int *value) { (void)gpu; *value = 700000; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(int *gpu, unsigned long long *value) {
    *value = (unsigned long long)(now_s() * milliwatts[*gpu]);
    return 0;
}
int nvmlDeviceGetUtilizationRates(int *gpu, Utilization *value) {
    value->gpu = 90 + *gpu;
    value->memory = 40 + *gpu;
    return 0;
}
int nvmlDeviceGetMemoryInfo(int *gpu, Memory *value) {
    (void)gpu;
    value->total = 80ull << 30;
    value->used = 60ull << 30;
    value->free = 20ull << 30;
    return 0;
}
/* Here, what the driver reserves for itself is not used. */
int nvmlDeviceGetMemoryInfo_v2(int *gpu, MemoryV2 *value) {
    (void)gpu;
    value->total = 80ull << 30;
    value->reserved = 1ull << 30;
    value->used = 59ull << 30;
    value->free = 20ull << 30;
    return 0;
}
int nvmlDeviceGetTemperature(int *gpu, int sensor, unsigned int *value) { (void)sensor; *value = 60 + *gpu; return 0; }
int nvmlDeviceGetClockInfo(int *gpu, int clock, unsigned int *value) { (void)gpu; (void)clock; *value = 1700; return 0; }
int nvmlDeviceGetMaxClockInfo(int *gpu, int clock, unsigned int *value) { (void)gpu; (void)clock; *value = 1980; return 0; }
/* The first GPU counts a fifth of its time as limited by power; the second one has only reasons. */
int nvmlDeviceGetCurrentClocksEventReasons(int *gpu, unsigned long long *value) { *value = *gpu ? 0x4 : 0x1; return 0; }
int nvmlDeviceGetViolationStatus(int *gpu, int policy, Violation *value) {
    if (*gpu) return NOT_SUPPORTED;
    value->referenceTime = 0;
    value->violationTime = policy == 0 ? (unsigned long long)(now_s() * 2e8) : 0;
    return 0;
}
