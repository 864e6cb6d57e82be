/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lapstrake: communication hidden behind computation in transformer training. Includes every header
 * of the API.
 */
#ifndef LAP_LAP_H
#define LAP_LAP_H

#include <lap/buffer.h>
#include <lap/checkpoint.h>
#include <lap/data.h>
#include <lap/data_parallel.h>
#include <lap/model.h>
#include <lap/nn.h>
#include <lap/op.h>
#include <lap/optimizer.h>
#include <lap/pipeline.h>
#include <lap/status.h>
#include <lap/tensor.h>
#include <lap/tp_overlap.h>
#include <lap/trace.h>
#include <lap/train.h>
#include <lap/version.h>
#include <lap/world.h>

#endif
