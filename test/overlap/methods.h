/* SPDX-License-Identifier: Apache-2.0 */
/* The methods that the suites of operators run, with knobs that change their schedules. */
#ifndef LAP_TEST_OVERLAP_METHODS_H
#define LAP_TEST_OVERLAP_METHODS_H

#include <lap/op.h>

/* A method with its knobs. */
typedef struct test_method {
    lap_op_kind_t kind;
    const char *method;
    int aggregate;
    size_t num_splits;
    size_t block_rows;
    int gather;
} test_method_t;

static const test_method_t test_methods[] = {
    {LAP_AG_GEMM, "serial", 0, 0, 0, 0},     {LAP_AG_GEMM, "ring", 0, 0, 0, 0},
    {LAP_AG_GEMM, "ring", 1, 0, 0, 0},       {LAP_AG_GEMM, "direct", 0, 0, 0, 0},
    {LAP_AG_GEMM, "direct", 0, 1, 0, 0},     {LAP_AG_GEMM, "direct", 0, 2, 0, 0},
    {LAP_AG_GEMM, "fused", 0, 0, 0, 0},      {LAP_AG_GEMM, "fused", 0, 0, 3, 0},
    {LAP_AG_GEMM, "serial", 0, 0, 0, 1},     {LAP_AG_GEMM, "ring", 0, 0, 0, 1},
    {LAP_AG_GEMM, "ring", 1, 0, 0, 1},       {LAP_AG_GEMM, "direct", 0, 0, 0, 1},
    {LAP_AG_GEMM, "direct", 0, 1, 0, 1},     {LAP_AG_GEMM, "fused", 0, 0, 0, 1},
    {LAP_AG_GEMM, "fused", 0, 0, 2, 1},      {LAP_AG_GEMM, "auto", 0, 0, 0, 0},
    {LAP_AG_GEMM, "auto", 0, 0, 0, 1},       {LAP_AG_GEMM, "oneshot", 0, 0, 0, 0},
    {LAP_AG_GEMM, "oneshot", 0, 0, 0, 1},    {LAP_GEMM_RS, "serial", 0, 0, 0, 0},
    {LAP_GEMM_RS, "oneshot", 0, 0, 0, 0},    {LAP_GEMM_RS, "ring", 0, 0, 0, 0},
    {LAP_GEMM_RS, "pipeline", 0, 0, 0, 0},   {LAP_GEMM_RS, "pipeline", 0, 3, 0, 0},
    {LAP_GEMM_RS, "pull", 0, 1, 0, 0},       {LAP_GEMM_RS, "pull", 0, 3, 0, 0},
    {LAP_GEMM_RS, "fused", 0, 0, 0, 0},      {LAP_GEMM_RS, "fused", 0, 0, 3, 0},
    {LAP_GEMM_RS, "auto", 0, 0, 0, 0},       {LAP_GEMM_AR, "serial", 0, 0, 0, 0},
    {LAP_GEMM_AR, "pipeline", 0, 0, 0, 0},   {LAP_GEMM_AR, "pipeline", 0, 3, 0, 0},
    {LAP_GEMM_AR, "direct", 0, 0, 0, 0},     {LAP_GEMM_AR, "fused", 0, 0, 0, 0},
    {LAP_GEMM_AR, "fused", 0, 0, 3, 0},      {LAP_GEMM_AR, "auto", 0, 0, 0, 0},
    {LAP_GEMM, "serial", 0, 0, 0, 0},        {LAP_GEMM, "auto", 0, 0, 0, 0},
    {LAP_BULK_AG, "serial", 0, 0, 0, 0},     {LAP_BULK_AG, "ring", 0, 0, 0, 0},
    {LAP_BULK_AG, "ring", 1, 0, 0, 0},       {LAP_BULK_AG, "direct", 0, 0, 0, 0},
    {LAP_BULK_AG, "fused", 0, 0, 0, 0},      {LAP_BULK_AG, "fused", 0, 0, 3, 0},
    {LAP_BULK_AG, "auto", 0, 0, 0, 0},       {LAP_BULK_RS, "serial", 0, 0, 0, 0},
    {LAP_BULK_RS, "direct", 0, 0, 0, 0},     {LAP_BULK_RS, "auto", 0, 0, 0, 0},
    {LAP_EXTERNAL_AG, "serial", 0, 0, 0, 0}, {LAP_EXTERNAL_AG, "ring", 0, 0, 0, 0},
    {LAP_EXTERNAL_AG, "ring", 1, 0, 0, 0},   {LAP_EXTERNAL_AG, "direct", 0, 0, 0, 0},
    {LAP_EXTERNAL_AG, "fused", 0, 0, 0, 0},  {LAP_EXTERNAL_AG, "fused", 0, 0, 3, 0},
    {LAP_EXTERNAL_AG, "auto", 0, 0, 0, 0},   {LAP_EXTERNAL_RS, "serial", 0, 0, 0, 0},
    {LAP_EXTERNAL_RS, "ring", 0, 0, 0, 0},   {LAP_EXTERNAL_RS, "direct", 0, 0, 0, 0},
    {LAP_EXTERNAL_RS, "auto", 0, 0, 0, 0},
};

enum { TEST_METHODS = sizeof(test_methods) / sizeof(test_methods[0]) };

#endif
