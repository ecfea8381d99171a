/* A disk that fails when it is told to: preloaded, it stands before the C library's writes and syncs of some files.
 *
 * REMORA_FAULTY   part of the names of files that are meant, "journal.db" for instance
 * REMORA_FAULTS   a file of eight 64-bit numbers, shared with whoever gives the orders:
 *                 0  writes seen               1  syncs seen
 *                 2  the write that fails first, counted from 1; 0: none       3  how many fail from there on
 *                 4  the sync that fails first                                 5  how many fail from there on
 *                 6  errno of what fails       7  microseconds that each sync takes longer
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile int64_t *orders;
static const char *meant;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("REMORA_FAULTS");
    meant = getenv("REMORA_FAULTY");
    int fd = path && meant ? open(path, O_RDWR) : -1;
    if (fd >= 0) {
        void *found = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (found != MAP_FAILED) orders = found;
        close(fd);
    }
}

static int is_meant(int fd) {
    char link[64], name[4096];
    if (!orders) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length <= 0) return 0;
    name[length] = 0;
    return strstr(name, meant) != NULL;
}

static int fails(int counter, int first) {
    int64_t number = __sync_add_and_fetch(&orders[counter], 1);
    int64_t from = orders[first];
    if (from <= 0 || number < from || number >= from + orders[first + 1]) return 0;
    errno = (int)orders[6];
    return 1;
}

#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t size) {
    NEXT(write);
    return is_meant(fd) && fails(0, 2) ? -1 : next(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    NEXT(pwrite);
    return is_meant(fd) && fails(0, 2) ? -1 : next(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    NEXT(pwrite64);
    return is_meant(fd) && fails(0, 2) ? -1 : next(fd, data, size, at);
}

static int sync_fails(int fd) {
    if (!is_meant(fd)) return 0;
    if (orders[7] > 0) usleep((useconds_t)orders[7]);
    return fails(1, 4);
}

int fsync(int fd) {
    NEXT(fsync);
    return sync_fails(fd) ? -1 : next(fd);
}

int fdatasync(int fd) {
    NEXT(fdatasync);
    return sync_fails(fd) ? -1 : next(fd);
}
