/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds MPI at run time. Functions are looked for in what the whole process sees, so that those of
 * a program or of a profiler come first, as they would if MPI were linked.
 */
#include "core/mpi/mpi_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

#include "core/library.h"
#include "core/status.h"
#include "lap_config.h"

lap_mpi_api_t lap_mpi;

static const lap_library_t library = {
    .title = "MPI",
    .variable = "LAP_MPI",
    .names = {LAP_MPI_FILE},
    .dir = LAP_MPI_DIR,
    .least = "the MPI of the build, " LAP_MPI_FILE,
    .advice = "install the MPI of the build",
    .global = true,
};

#ifdef OPEN_MPI
#define CONSTANT(field, name, value) LAP_TRY(lap_library_find(&library, handle, #name, &api->field))
#else
#define CONSTANT(field, name, value) api->field = (value)
#endif

static lap_status_t find_constants(void *handle, lap_mpi_api_t *api)
{
    (void)handle;
    CONSTANT(comm_world, ompi_mpi_comm_world, MPI_COMM_WORLD);
    CONSTANT(comm_null, ompi_mpi_comm_null, MPI_COMM_NULL);
    CONSTANT(byte, ompi_mpi_byte, MPI_BYTE);
    CONSTANT(float32, ompi_mpi_float, MPI_FLOAT);
    CONSTANT(errors_return, ompi_mpi_errors_return, MPI_ERRORS_RETURN);
    CONSTANT(info_null, ompi_mpi_info_null, MPI_INFO_NULL);
    CONSTANT(sum, ompi_mpi_op_sum, MPI_SUM);
#ifndef OPEN_MPI
    if (dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world"))
        return lap_error(LAP_ERR_UNSUPPORTED, "the MPI here is Open MPI, expected %s",
                         library.least);
#endif
    return LAP_OK;
}

static lap_status_t load(void)
{
    lap_mpi_api_t api;
    void *handle = NULL;
    if (!dlsym(RTLD_DEFAULT, "MPI_Init_thread"))
        LAP_TRY(lap_library_open(&library, &handle));
#define FIND(name) LAP_TRY(lap_library_find(&library, handle, #name, &api.name));
    LAP_MPI_CALLS(FIND)
#undef FIND
    LAP_TRY(find_constants(handle, &api));
    lap_mpi = api;
    return LAP_OK;
}

lap_status_t lap_mpi_load(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool loaded;
    pthread_mutex_lock(&lock);
    const lap_status_t status = loaded ? LAP_OK : load();
    loaded = status == LAP_OK;
    pthread_mutex_unlock(&lock);
    return status;
}
