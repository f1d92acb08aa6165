/*
 * Sanitize for drives that lack it: no released QEMU has the command.
 *
 * Preloaded into the real nvme-cli, this answers on behalf of the controllers whose serial number is a directory in
 * $SANITIZE_SHIM (NVM Express Base Specification 2.0: Sanitize, opcode 84h; Sanitize Status, log page 81h):
 *
 *   <serial>/sanicap   what the drive can do, as in Identify Controller (1: crypto erase, 2: block erase)
 *   <serial>/tnvmcap   bytes in all, as in Identify Controller; where there is none, what the controller says stands
 *   <serial>/seconds   how long it takes
 *   <serial>/mode      ok, fail (gives up half way, erases nothing) or stall (stands still at a third)
 *   <serial>/state     what the drive remembers, also when it was without power: start, action, erased, how it ended
 *
 * While it sanitizes, a drive refuses whatever is not Identify, Get Log Page or a look at a feature. At the end its
 * namespaces really are erased: by Write Zeroes (block erase), or as noise, which is what is left of data whose key
 * is gone (crypto erase). Everything else reaches the controller.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/fs.h>
#include <linux/nvme_ioctl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

enum { GET_LOG = 0x02, IDENTIFY = 0x06, GET_FEATURES = 0x0a, SANITIZE = 0x84 };
enum { SANITIZE_STATUS = 0x81, CONTROLLER = 0x01, TNVMCAP = 280, SANICAP = 328 };
enum { INVALID_FIELD = 0x4002, SANITIZE_FAILED = 0x1c, IN_PROGRESS = 0x1d };
enum { EXIT_FAILURE_MODE = 1, BLOCK_ERASE = 2, CRYPTO_ERASE = 4 };
enum { NEVER = 0, COMPLETED = 1, RUNNING = 2, FAILED = 3, DATA_ERASED = 0x100 };

typedef int (*ioctl_fn)(int, unsigned long, ...);

struct drive {
    char controller[32];
    char directory[256];
    int lock;
    double start, seconds;
    unsigned action, ended;
    int erased;
    char mode[16];
    unsigned sanicap;
    uint64_t tnvmcap;
};

static ioctl_fn real_ioctl(void)
{
    return (ioctl_fn)dlsym(RTLD_NEXT, "ioctl");
}

static int read_text(const char *directory, const char *name, char *into, size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    size_t length = fread(into, 1, size - 1, file);
    fclose(file);
    while (length && (into[length - 1] == '\n' || into[length - 1] == ' '))
        length--;
    into[length] = 0;
    return 1;
}

static double now(void)
{
    struct timespec t; /* the wall clock, since a drive goes on where it was after a power cut */
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void remember(const struct drive *d)
{
    char path[512], fresh[520];
    snprintf(path, sizeof path, "%s/state", d->directory);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "w");
    if (!file)
        abort(); /* a drive that forgets would be another drive than the one to be tried */
    fprintf(file, "%.3f %u %d %u\n", d->start, d->action, d->erased, d->ended);
    fclose(file);
    if (rename(fresh, path))
        abort();
}

/* The drive behind a file descriptor, with its state locked; 0: none of ours. */
static int open_drive(int fd, struct drive *d)
{
    const char *all = getenv("SANITIZE_SHIM");
    struct stat st;
    char link[64], target[256], serial[64], text[64];
    if (!all || fstat(fd, &st) || !S_ISCHR(st.st_mode))
        return 0;
    snprintf(link, sizeof link, "/sys/dev/char/%u:%u", major(st.st_rdev), minor(st.st_rdev));
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0)
        return 0;
    target[length] = 0;
    memset(d, 0, sizeof *d);
    snprintf(d->controller, sizeof d->controller, "%.31s", strrchr(target, '/') + 1);
    if (!read_text(link, "serial", serial, sizeof serial))
        return 0;
    snprintf(d->directory, sizeof d->directory, "%s/%s", all, serial);
    if (!read_text(d->directory, "sanicap", text, sizeof text))
        return 0;
    d->sanicap = strtoul(text, NULL, 0);
    d->tnvmcap = read_text(d->directory, "tnvmcap", text, sizeof text) ? strtoull(text, NULL, 0) : 0;
    d->seconds = read_text(d->directory, "seconds", text, sizeof text) ? atof(text) : 5;
    if (!read_text(d->directory, "mode", d->mode, sizeof d->mode))
        strcpy(d->mode, "ok");
    snprintf(target, sizeof target, "%.240s/lock", d->directory);
    d->lock = open(target, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (d->lock < 0 || flock(d->lock, LOCK_EX))
        abort();
    if (read_text(d->directory, "state", text, sizeof text))
        sscanf(text, "%lf %u %d %u", &d->start, &d->action, &d->erased, &d->ended);
    return 1;
}

static double elapsed(const struct drive *d)
{
    double share = (now() - d->start) / d->seconds;
    return share < 0 ? 0 : share;
}

static void overwrite(const char *node, unsigned action)
{
    static uint64_t noise[1 << 17]; /* 1 MiB */
    uint64_t range[2] = {0, 0}, seed = (uint64_t)(now() * 1e6) | 1;
    int fd = open(node, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || real_ioctl()(fd, BLKGETSIZE64, &range[1]))
        abort();
    if (action == BLOCK_ERASE) {
        if (real_ioctl()(fd, BLKZEROOUT, range))
            abort();
    } else {
        for (size_t i = 0; i < sizeof noise / sizeof *noise; i++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            noise[i] = seed;
        }
        for (uint64_t done = 0; done < range[1];) {
            uint64_t left = range[1] - done;
            ssize_t written = write(fd, noise, left < sizeof noise ? left : sizeof noise);
            if (written <= 0)
                abort();
            done += written;
        }
    }
    if (fsync(fd) || close(fd))
        abort();
}

static void erase(const struct drive *d)
{
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof pattern, "/dev/%sn*", d->controller);
    if (glob(pattern, 0, NULL, &found))
        return; /* a drive without namespaces has nothing to lose */
    for (size_t i = 0; i < found.gl_pathc; i++)
        overwrite(found.gl_pathv[i], d->action);
    globfree(&found);
}

/* Let the time that has passed have its effects. */
static void advance(struct drive *d)
{
    if (d->ended != RUNNING || !strcmp(d->mode, "stall"))
        return;
    if (!strcmp(d->mode, "fail") && elapsed(d) >= 0.5) {
        d->ended = FAILED;
        remember(d);
    } else if (elapsed(d) >= 1) {
        erase(d);
        d->erased = 1;
        d->ended = COMPLETED;
        remember(d);
    }
}

static int start(struct drive *d, const struct nvme_passthru_cmd *command)
{
    unsigned action = command->cdw10 & 7;
    if (d->ended == RUNNING)
        return IN_PROGRESS;
    if (action == EXIT_FAILURE_MODE)
        return 0;
    if (!(action == BLOCK_ERASE && d->sanicap & 2) && !(action == CRYPTO_ERASE && d->sanicap & 1))
        return INVALID_FIELD;
    d->start = now();
    d->action = action;
    d->erased = 0;
    d->ended = RUNNING;
    remember(d);
    return 0;
}

static void status_log(const struct drive *d, void *into, uint32_t size)
{
    uint8_t page[512] = {0};
    uint16_t progress = 0xffff, status = d->ended | (d->erased ? DATA_ERASED : 0);
    uint32_t action = d->action, none = 0xffffffff, seconds = d->seconds;
    if (d->ended == RUNNING) {
        double share = elapsed(d);
        progress = 65535 * (!strcmp(d->mode, "stall") && share > 1.0 / 3 ? 1.0 / 3 : share > 0.999 ? 0.999 : share);
    }
    memcpy(page, &progress, 2);
    memcpy(page + 2, &status, 2);
    memcpy(page + 4, &action, 4);
    for (int i = 0; i < 6; i++) /* estimates: overwrite, block erase, crypto erase, and the same without deallocation */
        memcpy(page + 8 + 4 * i, i % 3 == 0 ? &none : &seconds, 4);
    memcpy(into, page, size < sizeof page ? size : sizeof page);
}

static void identify(const struct drive *d, uint8_t *data)
{
    memcpy(data + SANICAP, &d->sanicap, sizeof d->sanicap);
    if (d->tnvmcap)
        memcpy(data + TNVMCAP, &d->tnvmcap, sizeof d->tnvmcap);
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    struct nvme_passthru_cmd *command = va_arg(rest, void *); /* the 64-bit form differs only behind this */
    va_end(rest);

    struct drive d;
    if ((request != NVME_IOCTL_ADMIN_CMD && request != NVME_IOCTL_ADMIN64_CMD) || !open_drive(fd, &d))
        return real_ioctl()(fd, request, command);
    advance(&d);
    int status;
    if (command->opcode == SANITIZE) {
        status = start(&d, command);
    } else if (command->opcode == GET_LOG && (command->cdw10 & 0xff) == SANITIZE_STATUS) {
        status_log(&d, (void *)(uintptr_t)command->addr, command->data_len);
        status = 0;
    } else if (d.ended == RUNNING && command->opcode != GET_LOG && command->opcode != IDENTIFY &&
               command->opcode != GET_FEATURES) {
        status = IN_PROGRESS;
    } else if (d.ended == FAILED && command->opcode != GET_LOG && command->opcode != IDENTIFY &&
               command->opcode != GET_FEATURES) {
        status = SANITIZE_FAILED;
    } else {
        status = real_ioctl()(fd, request, command);
        if (status == 0 && command->opcode == IDENTIFY && (command->cdw10 & 0xff) == CONTROLLER)
            identify(&d, (void *)(uintptr_t)command->addr);
    }
    close(d.lock);
    return status;
}
