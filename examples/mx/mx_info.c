/*
 * Prints the MX boards of this host: their addresses and names, and with -c their counters.
 *
 *   mx_info -c
 */
#include "mx_example.h"

static const char usage[] = "usage: mx_info [-c] [-b BOARD]\n"
                            "  -c  counters too                          -b  this board only\n";

static uint32_t ask(mx_get_info_key_t key, uint32_t board)
{
    uint32_t value = 0;
    MX(mx_get_info(NULL, key, &board, sizeof board, &value, sizeof value));
    return value;
}

static void print_text(const char *label, mx_get_info_key_t key, uint32_t board)
{
    char text[MX_MAX_STR_LEN] = "";
    MX(mx_get_info(NULL, key, &board, sizeof board, text, sizeof text));
    printf("  %-16s %s\n", label, text);
}

static const char *speed_name(uint32_t speed)
{
    switch (speed) {
    case MX_SPEED_2G: return "2 Gb/s";
    case MX_SPEED_10G: return "10 Gb/s";
    case MX_SPEED_OPEN_MX: return "that of the interface";
    default: return "unknown";
    }
}

static void print_counters(uint32_t board)
{
    uint32_t count = ask(MX_COUNTERS_COUNT, board);
    char *labels = calloc(count + 1, MX_MAX_STR_LEN);
    uint32_t *values = calloc(count + 1, sizeof *values);
    if (labels == NULL || values == NULL)
        fail("no memory");
    MX(mx_get_info(NULL, MX_COUNTERS_LABELS, &board, sizeof board, labels, count * MX_MAX_STR_LEN));
    MX(mx_get_info(NULL, MX_COUNTERS_VALUES, &board, sizeof board, values, count * (uint32_t)sizeof *values));
    printf("  counters\n");
    for (uint32_t at = 0; at < count; at++)
        printf("    %-40s %" PRIu32 "\n", labels + (size_t)at * MX_MAX_STR_LEN, values[at]);
    free(labels);
    free(values);
}

static void print_board(uint32_t board, int counters)
{
    char name[MX_MAX_HOSTNAME_LEN];
    uint32_t numa = ask(MX_NUMA_NODE, board);
    uint64_t nic_id;
    MX(mx_board_number_to_nic_id(board, &nic_id));
    MX(mx_nic_id_to_hostname(nic_id, name));
    printf("board %" PRIu32 "\n", board);
    printf("  %-16s %s\n", "name", name);
    printf("  %-16s %02x:%02x:%02x:%02x:%02x:%02x\n", "nic id", (unsigned)(nic_id >> 40) & 255,
           (unsigned)(nic_id >> 32) & 255, (unsigned)(nic_id >> 24) & 255, (unsigned)(nic_id >> 16) & 255,
           (unsigned)(nic_id >> 8) & 255, (unsigned)nic_id & 255);
    print_text("product code", MX_PRODUCT_CODE, board);
    print_text("part number", MX_PART_NUMBER, board);
    print_text("serial number", MX_SERIAL_NUMBER, board);
    printf("  %-16s %s\n", "network", ask(MX_NET_TYPE, board) == MX_NET_ETHER ? "Ethernet" : "Myrinet");
    printf("  %-16s %s\n", "line speed", speed_name(ask(MX_LINE_SPEED, board)));
    printf("  %-16s %" PRIu32 "\n", "ports", ask(MX_PORT_COUNT, board));
    if (numa == UINT32_MAX)
        printf("  %-16s %s\n", "NUMA node", "unknown");
    else
        printf("  %-16s %" PRIu32 "\n", "NUMA node", numa);
    if (counters)
        print_counters(board);
}

int main(int argc, char **argv)
{
    uint32_t only = MX_ANY_NIC, boards, found = 0;
    int option, counters = 0;

    while ((option = getopt(argc, argv, "b:ch")) != -1) {
        switch (option) {
        case 'b': only = (uint32_t)number(optarg, 0, UINT32_MAX - 1); break;
        case 'c': counters = 1; break;
        default: fputs(usage, option == 'h' ? stdout : stderr); return option == 'h' ? 0 : USAGE;
        }
    }
    MX(mx_init());
    boards = ask(MX_NIC_COUNT, 0);
    printf("MX API %#x, %" PRIu32 " board%s\n", MX_API, boards, boards == 1 ? "" : "s");
    printf("  %-16s %" PRIu32 " on each board\n", "endpoints", ask(MX_MAX_NATIVE_ENDPOINTS, 0));
    printf("  %-16s %" PRIu32 " bytes\n", "sent at once", ask(MX_PIO_SEND_MAX, 0));
    printf("  %-16s %" PRIu32 " bytes\n", "copied", ask(MX_COPY_SEND_MAX, 0));
    for (uint32_t board = 0; board < boards; board++)
        if (only == MX_ANY_NIC || only == board) {
            print_board(board, counters);
            found++;
        }
    MX(mx_finalize());
    if (found == 0 && only != MX_ANY_NIC) {
        fprintf(stderr, "there is no board %" PRIu32 "\n", only);
        return FAILED;
    }
    return 0;
}
