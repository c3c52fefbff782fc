/* A plugin of qemu-user that counts instructions: each close() of a descriptor below -1000 writes how many ran so far.

   Built by `dev.arm.table`. Debian ships qemu without qemu-plugin.h, so what is used of it is declared here: version 1. */

#include <stdint.h>
#include <stdio.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_info;
typedef void (*tb_callback)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*run_callback)(unsigned int, void *);
typedef void (*syscall_callback)(qemu_plugin_id_t, unsigned int, int64_t, uint64_t, uint64_t, uint64_t,
                                 uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, tb_callback);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, run_callback, int flags, void *);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, syscall_callback);
unsigned long qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t total;

static void count(unsigned int vcpu, void *instructions) {
    (void)vcpu;
    total += (uintptr_t)instructions;
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, count, 0, (void *)qemu_plugin_tb_n_insns(block));
}

static void mark(qemu_plugin_id_t id, unsigned int vcpu, int64_t number, uint64_t a, uint64_t b, uint64_t c,
                 uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
    (void)id, (void)vcpu, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    const int close_number = 57;
    if (number == close_number && (int32_t)a < -1000)
        fprintf(stderr, "count %d %llu\n", (int32_t)a, (unsigned long long)total);
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info,
                                                               int argc, char **argv) {
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    qemu_plugin_register_vcpu_syscall_cb(id, mark);
    return 0;
}
