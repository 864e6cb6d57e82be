/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver says about its GPUs: see cuda_info.h. Nothing is linked, all is loaded here. */
#include "device/cuda/cuda_info.h"

#include <dlfcn.h>
#include <string.h>

#include <cuda.h>
#include <cudaTypedefs.h>

#include "core/status.h"

typedef struct driver {
    PFN_cuInit_v2000 init;
    PFN_cuDriverGetVersion_v2020 version;
    PFN_cuDeviceGetCount_v2000 count;
    PFN_cuDeviceGet_v2000 get;
    PFN_cuDeviceGetName_v2000 name;
    PFN_cuDeviceTotalMem_v3020 memory;
    PFN_cuDeviceGetAttribute_v2000 attribute;
    PFN_cuGetErrorString_v6000 error_string;
} driver_t;

/* `function_p` points to a pointer to a function, which has no common type. */
static bool find(void *library, const char *name, void *function_p)
{
    void *symbol = dlsym(library, name);
    memcpy(function_p, &symbol, sizeof(symbol));
    return symbol != NULL;
}

static lap_status_t load(driver_t *driver)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return lap_error(LAP_ERR_UNSUPPORTED, "no NVIDIA driver here: %s", dlerror());
    /* The functions with the versions that this cuda.h declares. */
    if (find(library, "cuInit", &driver->init) &&
        find(library, "cuDriverGetVersion", &driver->version) &&
        find(library, "cuDeviceGetCount", &driver->count) &&
        find(library, "cuDeviceGet", &driver->get) &&
        find(library, "cuDeviceGetName", &driver->name) &&
        find(library, "cuDeviceTotalMem_v2", &driver->memory) &&
        find(library, "cuDeviceGetAttribute", &driver->attribute) &&
        find(library, "cuGetErrorString", &driver->error_string))
        return LAP_OK;
    lap_error(LAP_ERR_UNSUPPORTED, "the NVIDIA driver here cannot be used: %s", dlerror());
    dlclose(library);
    return LAP_ERR_UNSUPPORTED;
}

static lap_status_t failed(const driver_t *driver, const char *call, CUresult result)
{
    const char *text = NULL;
    if (driver->error_string(result, &text) != CUDA_SUCCESS || !text)
        text = "an unknown error";
    return lap_error(LAP_ERR_UNSUPPORTED, "the NVIDIA driver is here, but %s fails: %s", call,
                     text);
}

static int attribute(const driver_t *driver, CUdevice device, CUdevice_attribute which)
{
    /* An attribute that an older driver does not know counts as absent. */
    int value = 0;
    return driver->attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

static lap_status_t look_at(const driver_t *driver, int index, lap_cuda_gpu_t *gpu)
{
    CUdevice device;
    CUresult result = driver->get(&device, index);
    if (result != CUDA_SUCCESS)
        return failed(driver, "cuDeviceGet", result);
    result = driver->name(gpu->name, sizeof(gpu->name), device);
    if (result != CUDA_SUCCESS)
        return failed(driver, "cuDeviceGetName", result);
    result = driver->memory(&gpu->memory, device);
    if (result != CUDA_SUCCESS)
        return failed(driver, "cuDeviceTotalMem", result);
    gpu->sms = attribute(driver, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    gpu->major = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    gpu->minor = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    gpu->ipc = attribute(driver, device, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
    gpu->vmm =
        attribute(driver, device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
        attribute(driver, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    return LAP_OK;
}

lap_status_t lap_cuda_info(lap_cuda_info_t *info_p)
{
    driver_t driver = {0};
    lap_cuda_info_t info = {0};
    LAP_TRY(load(&driver));
    CUresult result = driver.init(0);
    if (result != CUDA_SUCCESS)
        return failed(&driver, "cuInit", result);
    result = driver.version(&info.version);
    if (result != CUDA_SUCCESS)
        return failed(&driver, "cuDriverGetVersion", result);
    result = driver.count(&info.count);
    if (result != CUDA_SUCCESS)
        return failed(&driver, "cuDeviceGetCount", result);
    if (info.count < 1)
        return lap_error(LAP_ERR_UNSUPPORTED, "the NVIDIA driver is here, but it shows no GPU");
    if (info.count > LAP_CUDA_GPUS_MAX)
        info.count = LAP_CUDA_GPUS_MAX;
    for (int i = 0; i < info.count; i++)
        LAP_TRY(look_at(&driver, i, &info.gpus[i]));
    *info_p = info;
    return LAP_OK;
}
