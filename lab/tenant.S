# The boot sector of a tenant's own disk: loads what follows it, goes to protected mode, and calls tenant() of
# tenant.c.
    .code16
    .globl start
start:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw $0x7c00, %sp
    movw $packet, %si
    movb $0x42, %ah         # extended read, from the drive in %dl that this sector came from
    int $0x13
    jc forever
    inb $0x92, %al          # A20: the queues are above 1 MiB
    orb $2, %al
    outb %al, $0x92
    lgdt table_register
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmp $8, $protected
forever:
    hlt
    jmp forever

    .code32
protected:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $0x7c00, %esp
    cld
    call tenant
stay:
    cli
    hlt
    jmp stay

packet:
    .byte 16, 0
    .word 15                # blocks
    .word 0x7e00, 0         # offset and segment: right behind this sector
    .quad 1                 # LBA
    .balign 8
table:                      # flat code and data, 4 GiB
    .quad 0
    .quad 0x00cf9a000000ffff
    .quad 0x00cf92000000ffff
table_register:
    .word table_register - table - 1
    .long table
    .org 510
    .word 0xaa55
