/*
 * What becomes of a program's memory that is pages granted by the kernel's own node (/dev/xen/gntalloc): whether buffers could be moved there, as
 * they are moved into the window of a guest of QEMU. One line for each question.
 *
 *   granted DOMAIN
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xen/gntalloc.h>
/* Which the next one takes for known. */
typedef uint32_t grant_ref_t;
typedef uint16_t domid_t;
#include <xen/gntdev.h>

#define PAGE 4096

static const char *outcome(int failed) { return failed ? strerrorname_np(errno) : "ok"; }

static void *granted(int file, int flags) { return mmap(NULL, PAGE, PROT_READ | PROT_WRITE, flags, file, 0); }

int main(int argc, char **argv) {
    struct ioctl_gntalloc_alloc_gref asked = {.domid = argc > 1 ? atoi(argv[1]) : 0, .flags = GNTALLOC_FLAG_WRITABLE, .count = 1};
    int file = open("/dev/xen/gntalloc", O_RDWR | O_CLOEXEC);
    if (file < 0 || ioctl(file, IOCTL_GNTALLOC_ALLOC_GREF, &asked) != 0) {
        perror("gntalloc");
        return 1;
    }
    printf("a private mapping: %s\n", outcome(granted(file, MAP_PRIVATE) == MAP_FAILED));
    volatile char *page = granted(file, MAP_SHARED);
    if (page == MAP_FAILED) {
        perror("mmap");
        return 1;
    }

    page[0] = 1;
    pid_t child = fork();
    if (child == 0) {
        page[0] = 2;
        _exit(0);
    }
    waitpid(child, NULL, 0);
    printf("what a child writes: %s\n", page[0] == 2 ? "seen" : "not seen");

    /* A lock is what has an allocator's MADV_DONTNEED refused elsewhere. */
    printf("a lock: %s\n", outcome(mlock((void *)page, PAGE)));
    printf("MADV_DONTNEED: %s\n", outcome(madvise((void *)page, PAGE, MADV_DONTNEED)));
    fflush(stdout);
    child = fork();
    if (child == 0) {
        page[0] = 3;
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("a touch after that: %s\n", WIFSIGNALED(status) ? sigabbrev_np(WTERMSIG(status)) : "ok");

    /* The way of the kernel's to grant pages that a program has already. */
    struct ioctl_gntdev_dmabuf_imp_to_refs grant = {.fd = file, .count = 1, .domid = asked.domid};
    int node = open("/dev/xen/gntdev", O_RDWR | O_CLOEXEC);
    printf("granting pages of others: %s\n", outcome(ioctl(node, IOCTL_GNTDEV_DMABUF_IMP_TO_REFS, &grant)));
    return 0;
}
