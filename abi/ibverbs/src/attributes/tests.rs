use super::*;
use std::mem::offset_of;

fn name(text: &str) -> [c_char; 64] {
    let mut name = [0; 64];
    name.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte as c_char);
    name
}

#[test]
fn devices_are_matched_by_prefix_and_number() {
    for ours in ["isthmus0", "isthmus1", "isthmus42"] {
        assert!(is_isthmus_device(&name(ours)), "{ours}");
    }
    for foreign in ["", "isthmus", "isthmu0", "isthmus_0", "isthmus0x", "isthmus-1", "mlx5_0", "rxe0", "xisthmus0"] {
        assert!(!is_isthmus_device(&name(foreign)), "{foreign}");
    }
    // A name that fills the array has no zero byte.
    let mut full = [b'7' as c_char; 64];
    full[..8].copy_from_slice(&name("isthmus0")[..8]);
    assert!(is_isthmus_device(&full));
}

#[test]
fn guids_are_parsed_as_sysfs_has_them() {
    assert_eq!(parse_guid("0011:2233:4455:6677\n"), Some(0x0011_2233_4455_6677));
    assert_eq!(parse_guid("ffff:FFFF:0000:0001"), Some(0xffff_ffff_0000_0001));
    for wrong in [
        "",
        "0011:2233:4455",
        "0011:2233:4455:6677:8899",
        "011:2233:4455:6677",
        "+011:2233:4455:6677",
        "0011:2233:4455:667g",
    ] {
        assert_eq!(parse_guid(wrong), None, "{wrong}");
    }
}

#[test]
fn device_attributes_are_the_limits_of_the_engine() {
    let attr = device_attributes(0x0102_0304_0506_0708);
    assert_eq!(attr.node_guid.to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(attr.sys_image_guid, attr.node_guid);
    let version: Vec<u8> = attr.fw_ver.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    assert_eq!(version, env!("CARGO_PKG_VERSION").as_bytes());
    assert_eq!((attr.max_qp_wr, attr.max_sge, attr.max_cqe, attr.max_qp_rd_atom), (16_384, 32, 1 << 20, 128));
    assert_eq!((attr.max_srq_wr, attr.max_srq_sge, attr.max_pkeys, attr.phys_port_cnt), (16_384, 32, 1, 1));
    assert_eq!((attr.max_mr_size, attr.page_size_cap & 0x1fff), (u64::MAX, 0x1000));
    assert_eq!(attr.vendor_id, 0xff_ffff);
    assert_eq!((attr.atomic_cap, attr.max_mw, attr.max_mcast_grp), (ATOMIC_HCA, 0, 0));
    // Numbers of C are signed: none may wrap around.
    assert!(
        [attr.max_qp, attr.max_cq, attr.max_mr, attr.max_pd, attr.max_ah, attr.max_srq, attr.max_res_rd_atom]
            .iter()
            .all(|max| *max > 0)
    );
}

#[test]
fn extended_device_attributes_end_at_the_length_of_the_caller() {
    for len in [0, 232, 240, size_of::<IbvDeviceAttrEx>(), size_of::<IbvDeviceAttrEx>() + 64] {
        let mut bytes = [0xaa_u64; 64];
        // SAFETY: the array has 512 bytes.
        unsafe { fill_device_attributes_ex(bytes.as_mut_ptr().cast(), len, 1) };
        let filled = len.min(size_of::<IbvDeviceAttrEx>());
        assert!(bytes[filled / 8..].iter().all(|word| *word == 0xaa), "{len}");
        assert_eq!(bytes[offset_of!(IbvDeviceAttr, node_guid) / 8], if len == 0 { 0xaa } else { 1_u64.to_be() });
        if len > 240 {
            assert_eq!(bytes[232 / 8..280 / 8], [0; 6], "paging, timestamps and clock are not claimed");
            assert_eq!(bytes[288 / 8..392 / 8], [0; 13], "nor offloads, and padding is zero");
        }
    }
}

#[test]
fn port_attributes_end_at_the_length_of_the_caller() {
    let port = port_attributes(3);
    assert_eq!((port.state, port.phys_state, port.gid_tbl_len, port.pkey_tbl_len, port.lid), (4, 5, 3, 1, 0));
    assert_eq!((port.max_mtu, port.active_mtu, port.link_layer), (5, 5, LINK_LAYER_ETHERNET));
    assert_eq!((port.active_width, port.active_speed, port.max_msg_sz), (2, 32, 1 << 30));
    for len in [0, 48, PORT_ATTR_BYTES_34, 56, 60] {
        let mut bytes = [0xaaaa_aaaa_u32; 16];
        // SAFETY: the array has 64 bytes.
        unsafe { fill_port_attributes(bytes.as_mut_ptr().cast(), len, 3) };
        assert!(bytes[len.min(56) / 4..].iter().all(|word| *word == 0xaaaa_aaaa), "{len}");
        assert_eq!(bytes[0] == 4, len != 0);
    }
    let mut bytes = [0xaaaa_aaaa_u32; 16];
    // SAFETY: the array has 64 bytes.
    unsafe { fill_port_attributes_34(bytes.as_mut_ptr().cast(), 3) };
    assert_eq!((bytes[12], bytes[13]), (0, 0xaaaa_aaaa));
}
