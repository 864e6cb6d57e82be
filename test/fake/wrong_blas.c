/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An OpenBLAS whose cblas_sgemm is wrong on request, for LAP_OPENBLAS: the real one, and then
 * the first element of its result is changed. The environment says when:
 *
 *   WRONG_BY     what is added to the element, as a part of itself; not set: nothing is wrong
 *   WRONG_RANK   only in the process with this LAP_RANK; not set: in all
 *   WRONG_CALL   only in this call of the process, from 1; not set: in all
 *   WRONG_COUNT  a file to which the number of calls so far is written by each
 */
#include <cblas.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lap_config.h"

typedef void (*sgemm_t)(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE a_turned,
                        enum CBLAS_TRANSPOSE b_turned, blasint m, blasint n, blasint k, float alpha,
                        const float *a, blasint lda, const float *b, blasint ldb, float beta,
                        float *c, blasint ldc);

static atomic_int calls;

/* What is wrong with this call; NULL: nothing. */
static const char *error_of(int call)
{
    const char *rank = getenv("WRONG_RANK"), *own = getenv("LAP_RANK"),
               *which = getenv("WRONG_CALL");
    if (rank && (!own || strcmp(rank, own) != 0))
        return NULL;
    return !which || atoi(which) == call ? getenv("WRONG_BY") : NULL;
}

static void tell(int call)
{
    const char *path = getenv("WRONG_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "%d\n", call);
    fclose(file);
}

__attribute__((visibility("default"))) void
cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE a_turned, enum CBLAS_TRANSPOSE b_turned,
            blasint m, blasint n, blasint k, float alpha, const float *a, blasint lda,
            const float *b, blasint ldb, float beta, float *c, blasint ldc)
{
    sgemm_t real;
    void *symbol = dlsym(dlopen(LAP_OPENBLAS_FILE, RTLD_NOW), "cblas_sgemm");
    memcpy(&real, &symbol, sizeof(real));
    real(order, a_turned, b_turned, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    const int call = atomic_fetch_add(&calls, 1) + 1;
    tell(call);
    const char *by = error_of(call);
    if (by && m > 0 && n > 0) {
        c[0] += c[0] * (float)atof(by); /* what is multiplied may be a part of larger matrices */
    }
}
