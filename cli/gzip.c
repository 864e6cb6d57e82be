/* SPDX-License-Identifier: Apache-2.0 */
/* Files of gzip, by zlib, whose functions for files need none of its headers: see gzip.h. */
#include "gzip.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/file.h"
#include "core/library.h"
#include "core/status.h"
#include "util/alloc.h"

#define PIECE ((size_t)1 << 20) /* bytes of a call of zlib, whose sizes are ints */
#define ENDS_EARLY (-5)         /* Z_BUF_ERROR: all that is there was read, and more is missing */

static const lap_library_t library = {
    .title = "zlib",
    .variable = "LAP_ZLIB",
    .names = {"libz.so.1"},
    .dir = "/usr/lib",
};

typedef struct zlib {
    void *(*open)(int fd, const char *mode);
    int (*write)(void *file, const void *data, unsigned bytes);
    int (*read)(void *file, void *data, unsigned bytes);
    const char *(*error)(void *file, int *code_p);
    int (*close)(void *file);
} zlib_t;

static lap_status_t load(zlib_t *zlib)
{
    void *handle;
    LAP_TRY(lap_library_open(&library, &handle));
    LAP_TRY(lap_library_find(&library, handle, "gzdopen", &zlib->open));
    LAP_TRY(lap_library_find(&library, handle, "gzwrite", &zlib->write));
    LAP_TRY(lap_library_find(&library, handle, "gzread", &zlib->read));
    LAP_TRY(lap_library_find(&library, handle, "gzerror", &zlib->error));
    return lap_library_find(&library, handle, "gzclose", &zlib->close);
}

bool lap_is_gzip(const void *data, size_t bytes)
{
    static const unsigned char magic[] = {0x1f, 0x8b, 8};
    return bytes >= sizeof(magic) && memcmp(data, magic, sizeof(magic)) == 0;
}

bool lap_has_gzip_name(const char *path)
{
    const size_t length = strlen(path);
    return length > 3 && strcmp(path + length - 3, ".gz") == 0;
}

/* Opens a descriptor of its own of a file for zlib, which closes it; NULL: there is no memory. */
static void *open_fd(const zlib_t *zlib, int fd, const char *mode)
{
    const int own = dup(fd);
    void *file = own < 0 ? NULL : zlib->open(own, mode);
    if (own >= 0 && !file)
        close(own);
    return file;
}

/* ---- compressing ---- */

/* False with errno of the first failure; 0: zlib had no memory. */
static bool compress(const zlib_t *zlib, int fd, const char *data, size_t bytes)
{
    errno = 0;
    void *file = open_fd(zlib, fd, "wb");
    bool whole = file != NULL;
    for (size_t at = 0; whole && at < bytes; at += PIECE) {
        const size_t piece = bytes - at < PIECE ? bytes - at : PIECE;
        whole = zlib->write(file, data + at, (unsigned)piece) == (int)piece;
    }
    const int first = errno;
    const bool closed = file && zlib->close(file) == 0;
    errno = whole ? errno : first;
    return closed && whole;
}

/* Copies a file from its beginning. */
static bool copy(int fd, FILE *file)
{
    char piece[4096];
    ssize_t count = (ssize_t)lseek(fd, 0, SEEK_SET);
    while (count >= 0 && (count = read(fd, piece, sizeof(piece))) > 0)
        fwrite(piece, 1, (size_t)count, file);
    return count == 0;
}

lap_status_t lap_gzip_check(void)
{
    zlib_t zlib;
    return load(&zlib);
}

lap_status_t lap_gzip(const void *data, size_t bytes, FILE *file)
{
    zlib_t zlib;
    LAP_TRY(load(&zlib));
    const int fd = memfd_create("gzip", MFD_CLOEXEC);
    const bool whole = fd >= 0 && compress(&zlib, fd, data, bytes) && copy(fd, file);
    const int error = errno ? errno : ENOMEM;
    if (fd >= 0)
        close(fd);
    errno = error;
    return whole ? LAP_OK : lap_error_errno("cannot compress %zu bytes in memory", bytes);
}

/* ---- decompressing ---- */

/* Reads what a file holds into memory that grows with it, and a 0. */
static lap_status_t read_all(const zlib_t *zlib, void *file, const char *path, size_t most,
                             char **text_p, size_t *length_p)
{
    int count = 1, code = 0;
    for (size_t room = 0; count > 0; *length_p += count > 0 ? (size_t)count : 0) {
        char *grown = lap_grow_by(*text_p, *length_p, PIECE + 1, &room, 1);
        if (!grown)
            return lap_error(LAP_ERR_NO_MEMORY, "no memory to decompress %s", path);
        *text_p = grown;
        count = zlib->read(file, *text_p + *length_p, (unsigned)PIECE);
        if (count > 0 && *length_p + (size_t)count > most)
            return lap_error(LAP_ERR_INVALID, "%s is damaged: it holds too much", path);
    }
    const char *wrong = zlib->error(file, &code), *colon = strstr(wrong, ": ");
    if (code == 0)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID, "%s is damaged: %s", path,
                     code == ENDS_EARLY ? "it ends too early"
                     : colon            ? colon + 2
                                        : wrong);
}

lap_status_t lap_gunzip(const char *path, size_t most, char **text_p, size_t *length_p)
{
    zlib_t zlib;
    int fd;
    uint64_t bytes;
    LAP_TRY(load(&zlib));
    LAP_TRY(lap_file_open(path, &fd, &bytes));
    void *file = open_fd(&zlib, fd, "rb");
    close(fd);
    *text_p = NULL;
    *length_p = 0;
    if (!file)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to decompress %s", path);
    const lap_status_t status = read_all(&zlib, file, path, most, text_p, length_p);
    zlib.close(file);
    if (status != LAP_OK)
        lap_free(*text_p);
    return status;
}
