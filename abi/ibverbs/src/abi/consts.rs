//! Numbers of `infiniband/verbs.h`, called as there without the prefix `IBV_`.

/// Constants of one type.
macro_rules! consts {
    ($kind:ty: $($name:ident = $value:expr;)*) => {
        $(pub(crate) const $name: $kind = $value;)*
    };
}

// enum ibv_wr_opcode
consts! { u32:
    WR_RDMA_WRITE = 0;
    WR_RDMA_WRITE_WITH_IMM = 1;
    WR_SEND = 2;
    WR_SEND_WITH_IMM = 3;
    WR_RDMA_READ = 4;
    WR_ATOMIC_CMP_AND_SWP = 5;
    WR_ATOMIC_FETCH_AND_ADD = 6;
    WR_LOCAL_INV = 7;
    WR_BIND_MW = 8;
    WR_SEND_WITH_INV = 9;
    WR_TSO = 10;
    WR_DRIVER1 = 11;
    WR_ATOMIC_WRITE = 15;
}

// enum ibv_qp_type, ibv_srq_type
consts! { u32:
    QPT_RC = 2;
    QPT_UC = 3;
    QPT_UD = 4;
    SRQT_BASIC = 0;
}

// enum ibv_wc_flags
consts! { u32:
    WC_GRH = 1;
    WC_WITH_IMM = 1 << 1;
}

// enum ibv_create_cq_wc_flags
consts! { u64:
    WC_EX_WITH_BYTE_LEN = 1;
    WC_EX_WITH_IMM = 1 << 1;
    WC_EX_WITH_QP_NUM = 1 << 2;
    WC_EX_WITH_SRC_QP = 1 << 3;
    WC_EX_WITH_SLID = 1 << 4;
    WC_EX_WITH_SL = 1 << 5;
    WC_EX_WITH_DLID_PATH_BITS = 1 << 6;
}

// enum ibv_access_flags
consts! { u32:
    ACCESS_MW_BIND = 1 << 4;
    ACCESS_ZERO_BASED = 1 << 5;
    ACCESS_ON_DEMAND = 1 << 6;
    ACCESS_HUGETLB = 1 << 7;
    ACCESS_OPTIONAL_RANGE = 0x3ff0_0000;
}

// enum ibv_qp_init_attr_mask, ibv_qp_create_send_ops_flags, ibv_srq_init_attr_mask, ibv_srq_attr_mask, ibv_cq_init_attr_mask,
// ibv_create_cq_attr_flags
consts! { u32:
    QP_INIT_ATTR_PD = 1;
    QP_INIT_ATTR_CREATE_FLAGS = 1 << 2;
    QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6;
    SRQ_INIT_ATTR_TYPE = 1;
    SRQ_INIT_ATTR_PD = 1 << 1;
    SRQ_MAX_WR = 1;
    SRQ_LIMIT = 1 << 1;
    CQ_INIT_ATTR_MASK_FLAGS = 1;
    CREATE_CQ_ATTR_SINGLE_THREADED = 1;
}
consts! { u64:
    QP_EX_WITH_RDMA_WRITE = 1;
    QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1;
    QP_EX_WITH_SEND = 1 << 2;
    QP_EX_WITH_SEND_WITH_IMM = 1 << 3;
    QP_EX_WITH_RDMA_READ = 1 << 4;
    QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5;
    QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6;
}

// enum ibv_device_cap_flags, ibv_atomic_cap
consts! { u32:
    DEVICE_CURR_QP_STATE_MOD = 1 << 7;
    DEVICE_SYS_IMAGE_GUID = 1 << 11;
    DEVICE_RC_RNR_NAK_GEN = 1 << 12;
    ATOMIC_HCA = 1;
}

// enum ibv_port_state, ibv_mtu, the link layers, ibv_port_cap_flags
consts! { u32:
    PORT_ACTIVE = 4;
    MTU_4096 = 5;
    PORT_IP_BASED_GIDS = 1 << 26;
}
consts! { u8:
    LINK_LAYER_ETHERNET = 2;
}

// enum ibv_event_type
consts! { u32:
    EVENT_CQ_ERR = 0;
    EVENT_QP_REQ_ERR = 2;
    EVENT_QP_ACCESS_ERR = 3;
    EVENT_SQ_DRAINED = 5;
    EVENT_SRQ_LIMIT_REACHED = 15;
    EVENT_QP_LAST_WQE_REACHED = 16;
}

// enum verbs_qp_mask of libibverbs/driver.h: the queue pair has the operations of `ibv_qp_ex`.
consts! { u32:
    VERBS_QP_EX = 1 << 1;
}

/// `IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS`: libibverbs passes optional access flags on.
pub(crate) const CORE_SUPPORT_OPTIONAL_MR_ACCESS: u64 = 1;

/// `RDMA_DRIVER_UNKNOWN`.
pub(crate) const DRIVER_UNKNOWN: u32 = 0;
