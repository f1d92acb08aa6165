/* A tenant's whole operating system, on a disk of its own: it fills LBA 16 of every NVMe drive that it was given with
 * its pattern, says so on COM1, and stays.
 *
 * It brings its own driver, as operating systems do: firmware that is told to boot from one disk does not serve the
 * others. Register and command numbers: NVM Express Base Specification 1.4.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

enum { BUSES = 16, NVME_CLASS = 0x010802 };
enum { CAP_HIGH = 0x04, CC = 0x14, CSTS = 0x1c, AQA = 0x24, ASQ = 0x28, ACQ = 0x30, DOORBELLS = 0x1000 };
enum { ENTRIES = 16, LBA = 16 };

struct command {
    u32 opcode, nsid, reserved[4], data[4], dword[6];
};

struct completion {
    u32 result, reserved;
    u16 head, queue, command, status; /* bit 0 of status is the phase */
};

struct queue {
    volatile struct command *commands;
    volatile struct completion *completions;
    volatile u32 *tail_doorbell, *head_doorbell;
    u32 used; /* never as many as ENTRIES, so that neither queue wraps and the phase stays 1 */
};

/* Pages that nothing else is in. */
static u8 *const memory = (u8 *)0x100000;
enum { PAGE = 4096, PAGES = 5, DATA = 4 };

static inline void outb(u16 port, u8 value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }
static inline void outl(u16 port, u32 value) { __asm__ volatile("outl %0, %1" : : "a"(value), "Nd"(port)); }
static inline u32 inl(u16 port)
{
    u32 value;
    __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void say(const char *text)
{
    while (*text)
        outb(0x3f8, *text++);
}

static u32 config_read(u32 function, u32 at)
{
    outl(0xcf8, 0x80000000 | function << 8 | at);
    return inl(0xcfc);
}

static void config_write(u32 function, u32 at, u32 value)
{
    outl(0xcf8, 0x80000000 | function << 8 | at);
    outl(0xcfc, value);
}

static volatile u32 *at(u32 registers, u32 offset) { return (volatile u32 *)(registers + offset); }

static struct queue queue(u32 registers, u32 number)
{
    u32 stride = 4 << (*at(registers, CAP_HIGH) & 15);
    u8 *pages = memory + 2 * number * PAGE;
    return (struct queue){
        (volatile struct command *)pages, (volatile struct completion *)(pages + PAGE),
        at(registers, DOORBELLS + 2 * number * stride), at(registers, DOORBELLS + (2 * number + 1) * stride), 0,
    };
}

/* Returns the status; 0: done. */
static u32 submit(struct queue *queue, u32 opcode, u32 nsid, void *data, u32 dword10, u32 dword11)
{
    volatile struct command *command = &queue->commands[queue->used];
    volatile struct completion *completion = &queue->completions[queue->used];
    command->opcode = queue->used << 16 | opcode;
    command->nsid = nsid;
    command->data[0] = (u32)data;
    command->dword[0] = dword10;
    command->dword[1] = dword11;
    *queue->tail_doorbell = ++queue->used;
    while (!(completion->status & 1))
        ;
    *queue->head_doorbell = queue->used;
    return completion->status >> 1;
}

static int write_to(u32 function)
{
    static const char pattern[] = "Tenant's secret\n";
    u32 registers = config_read(function, 0x10) & ~15u;
    if (config_read(function, 0x14))
        return 0; /* above 4 GiB, where this program cannot reach */
    config_write(function, 4, config_read(function, 4) | 6); /* memory, bus master */

    for (u32 byte = 0; byte < PAGES * PAGE; byte++)
        memory[byte] = byte < DATA * PAGE ? 0 : pattern[byte % 16];
    *at(registers, CC) = 0;
    while (*at(registers, CSTS) & 1)
        ;
    struct queue admin = queue(registers, 0), io = queue(registers, 1);
    *at(registers, AQA) = (ENTRIES - 1) << 16 | (ENTRIES - 1);
    *at(registers, ASQ) = (u32)admin.commands;
    *at(registers, ASQ + 4) = 0;
    *at(registers, ACQ) = (u32)admin.completions;
    *at(registers, ACQ + 4) = 0;
    *at(registers, CC) = 4 << 20 | 6 << 16 | 1; /* sizes of entries: 16 and 64 bytes; enable */
    while (!(*at(registers, CSTS) & 3))
        ;
    return !(*at(registers, CSTS) & 2)
        && !submit(&admin, 0x05, 0, (void *)io.completions, (ENTRIES - 1) << 16 | 1, 1) /* create completion queue */
        && !submit(&admin, 0x01, 0, (void *)io.commands, (ENTRIES - 1) << 16 | 1, 1 << 16 | 1) /* submission queue */
        && !submit(&io, 0x01, 1, memory + DATA * PAGE, LBA, 0) /* write one block */
        && !submit(&io, 0x00, 1, 0, 0, 0); /* flush */
}

void tenant(void)
{
    u32 found = 0;
    for (u32 function = 0; function < BUSES << 8; function++) {
        if (config_read(function, 8) >> 8 != NVME_CLASS)
            continue;
        found++;
        say(write_to(function) ? "tenant: written\r\n" : "tenant: the disk refused\r\n");
    }
    say(found ? "tenant: done\r\n" : "tenant: there is no drive\r\n");
}
