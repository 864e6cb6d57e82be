/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of checkpoints do with folders. */
#ifndef LAP_TEST_CHECKPOINT_FOLDER_H
#define LAP_TEST_CHECKPOINT_FOLDER_H

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>

static inline int remove_one(const char *path, const struct stat *about, int type, struct FTW *at)
{
    (void)about;
    (void)type;
    (void)at;
    return remove(path);
}

/* Removes a folder with all that is in it. */
static inline bool remove_folder(const char *path)
{
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0;
}

#endif
