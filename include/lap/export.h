/* SPDX-License-Identifier: Apache-2.0 */
/* What every public header needs: linkage for C++ and the mark of an exported function. */
#ifndef LAP_EXPORT_H
#define LAP_EXPORT_H

/* The mark of an exported function. */
#if defined(__GNUC__)
#define LAP_API __attribute__((visibility("default")))
#else
#define LAP_API
#endif

/* Around declarations: linkage for C++. */
#ifdef __cplusplus
#define LAP_BEGIN_DECLS extern "C" {
#define LAP_END_DECLS }
#else
#define LAP_BEGIN_DECLS
#define LAP_END_DECLS
#endif

#endif
