# A tenant's whole operating system: a boot sector that fills LBA 16 of the first disk with its pattern, says so on
# COM1, and powers its machine off by QEMU's isa-debug-exit. INT 13h, AH=43h: extended write, which SeaBIOS serves
# for NVMe drives as well.
    .code16
    .globl start
start:
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw $0x7c00, %sp
    cld
    movw $0x8000, %di
    movw $(512 / 16), %cx
fill:
    movw $pattern, %si
    pushw %cx
    movw $16, %cx
    rep movsb
    popw %cx
    loop fill
    movw $packet, %si
    movw $0x4300, %ax
    movb $0x80, %dl
    int $0x13
    movw $written, %si
    jnc say
    movw $refused, %si
say:
    lodsb
    testb %al, %al
    jz end
    movw $0x3f8, %dx
    outb %al, %dx
    jmp say
end:
    movw $0xf4, %dx
    movb $0x10, %al
    outb %al, %dx
forever:
    hlt
    jmp forever
pattern:
    .ascii "Tenant's secret\n"
written:
    .asciz "tenant: written\r\n"
refused:
    .asciz "tenant: the disk refused\r\n"
packet:
    .byte 16, 0
    .word 1             # blocks
    .word 0x8000, 0     # offset and segment of the data
    .quad 16            # LBA
    .org 510
    .word 0xaa55
