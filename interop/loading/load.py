"""Load libibverbs through ctypes, by the names given, and move data between two queue pairs.

    load.py NAME...

With --child in front, a child process does so.
"""

import ctypes
import subprocess
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, sizeof

NO_DEVICE = 3


class QpCap(Structure):
    _fields_ = [(name, c_uint32) for name in "send_wr recv_wr send_sge recv_sge inline_data".split()]


class QpInitAttr(Structure):
    _fields_ = [("qp_context", c_void_p), ("send_cq", c_void_p), ("recv_cq", c_void_p), ("srq", c_void_p),
                ("cap", QpCap), ("qp_type", c_int), ("sq_sig_all", c_int)]


class AhAttr(Structure):
    _fields_ = [("dgid", c_uint64 * 2), ("flow_label", c_uint32), ("sgid_index", c_uint8), ("hop_limit", c_uint8),
                ("traffic_class", c_uint8), ("pad", c_uint8), ("dlid", c_uint16), ("sl", c_uint8), ("src_path_bits", c_uint8),
                ("static_rate", c_uint8), ("is_global", c_uint8), ("port_num", c_uint8), ("end", c_uint8)]


class QpAttr(Structure):
    _fields_ = [("qp_state", c_int), ("cur_qp_state", c_int), ("path_mtu", c_int), ("path_mig_state", c_int),
                ("qkey", c_uint32), ("rq_psn", c_uint32), ("sq_psn", c_uint32), ("dest_qp_num", c_uint32),
                ("access", c_uint32), ("cap", QpCap), ("ah", AhAttr), ("alt_ah", AhAttr), ("pkey_index", c_uint16),
                ("alt_pkey_index", c_uint16), ("sqd", c_uint8), ("draining", c_uint8), ("max_rd_atomic", c_uint8),
                ("max_dest_rd_atomic", c_uint8), ("min_rnr_timer", c_uint8), ("port_num", c_uint8), ("timeout", c_uint8),
                ("retry_cnt", c_uint8), ("rnr_retry", c_uint8), ("alt_port_num", c_uint8), ("alt_timeout", c_uint8),
                ("rate_limit", c_uint32)]


class Sge(Structure):
    _fields_ = [("addr", c_uint64), ("length", c_uint32), ("lkey", c_uint32)]


class RecvWr(Structure):
    _fields_ = [("wr_id", c_uint64), ("next", c_void_p), ("sg_list", POINTER(Sge)), ("num_sge", c_int)]


class SendWr(Structure):
    _fields_ = [("wr_id", c_uint64), ("next", c_void_p), ("sg_list", POINTER(Sge)), ("num_sge", c_int), ("opcode", c_int),
                ("send_flags", c_uint32), ("imm", c_uint32), ("rest", c_uint8 * 88)]


class Wc(Structure):
    _fields_ = [("wr_id", c_uint64), ("status", c_int), ("opcode", c_int), ("rest", c_uint8 * 32)]


assert (sizeof(QpInitAttr), sizeof(QpAttr), sizeof(SendWr), sizeof(RecvWr), sizeof(Wc)) == (64, 144, 128, 32, 48)

# Where the header's inline functions find the device's: offsets in struct ibv_context, from its `ops` at 8.
POLL_CQ, POST_SEND, POST_RECV = 96, 208, 216


def read(address, offset, kind):
    return kind.from_address(address + offset).value


def operation(context, offset, *kinds):
    return ctypes.CFUNCTYPE(c_int, *kinds)(read(context, offset, c_void_p))


def load(names):
    """The first of the names that can be opened."""
    for name in names:
        try:
            lib = ctypes.CDLL(name)
        except OSError as error:
            print(error, file=sys.stderr)
            continue
        for function in "open_device alloc_pd reg_mr create_cq create_qp get_device_list".split():
            getattr(lib, "ibv_" + function).restype = c_void_p
        lib.ibv_get_device_name.restype = c_char_p
        lib.ibv_create_cq.argtypes = [c_void_p, c_int, c_void_p, c_void_p, c_int]
        lib.ibv_reg_mr.argtypes = [c_void_p, c_void_p, ctypes.c_size_t, c_int]
        lib.ibv_query_gid.argtypes = [c_void_p, c_uint8, c_int, c_void_p]
        return lib
    sys.exit("none of these can be opened: " + ", ".join(names))


def open_device(lib):
    number = c_int()
    devices = lib.ibv_get_device_list(byref(number))
    context = None
    for i in range(number.value):
        device = c_void_p(read(devices, 8 * i, c_void_p))
        if lib.ibv_get_device_name(device) == b"softrnic0":
            context = lib.ibv_open_device(device)
    if devices:
        lib.ibv_free_device_list(c_void_p(devices))
    if not context:
        print(f"there is no softrnic0 among {number.value} devices", file=sys.stderr)
        sys.exit(NO_DEVICE)
    return context


def connect(lib, qp, peer, gid):
    number = read(peer, 52, c_uint32)
    init = QpAttr(qp_state=1, port_num=1)
    rtr = QpAttr(qp_state=2, path_mtu=5, dest_qp_num=number, max_dest_rd_atomic=1, min_rnr_timer=1)
    rtr.ah = AhAttr(dgid=gid, hop_limit=64, is_global=1, port_num=1)
    rts = QpAttr(qp_state=3, timeout=14, retry_cnt=7, rnr_retry=7, max_rd_atomic=1)
    # STATE is 1, ACCESS_FLAGS 8, PKEY_INDEX 0x10, PORT 0x20, AV 0x80, PATH_MTU 0x100, TIMEOUT 0x200, RETRY_CNT 0x400,
    # RNR_RETRY 0x800, RQ_PSN 0x1000, MAX_QP_RD_ATOMIC 0x2000, MIN_RNR_TIMER 0x8000, SQ_PSN 0x10000,
    # MAX_DEST_RD_ATOMIC 0x20000, DEST_QPN 0x100000.
    for attr, mask in (init, 0x39), (rtr, 0x1 | 0x80 | 0x100 | 0x1000 | 0x8000 | 0x20000 | 0x100000), \
            (rts, 0x1 | 0x200 | 0x400 | 0x800 | 0x2000 | 0x10000):
        result = lib.ibv_modify_qp(c_void_p(qp), byref(attr), mask)
        assert result == 0, f"ibv_modify_qp to {attr.qp_state}: {result}"


def move_data(lib, context):
    size = 65536
    source = ctypes.create_string_buffer(bytes(i * 7 & 255 for i in range(size)), size)
    target = ctypes.create_string_buffer(size)
    pd = lib.ibv_alloc_pd(c_void_p(context))
    cq = lib.ibv_create_cq(context, 8, None, None, 0)
    gid = (c_uint64 * 2)()
    assert lib.ibv_query_gid(context, 1, 0, byref(gid)) == 0
    mrs = [lib.ibv_reg_mr(pd, ctypes.addressof(buffer), size, 1) for buffer in (source, target)]
    init = QpInitAttr(send_cq=cq, recv_cq=cq, qp_type=2, cap=QpCap(4, 4, 1, 1, 0))
    qps = [lib.ibv_create_qp(c_void_p(pd), byref(init)) for _ in range(2)]
    assert pd and cq and all(mrs) and all(qps)
    connect(lib, qps[0], qps[1], gid)
    connect(lib, qps[1], qps[0], gid)
    # The local key lies behind context, pd, addr, length and handle.
    sges = [Sge(ctypes.addressof(buffer), size, read(mr, 36, c_uint32)) for buffer, mr in zip((source, target), mrs)]
    bad = c_void_p()
    post_recv = operation(context, POST_RECV, c_void_p, c_void_p, c_void_p)
    post_send = operation(context, POST_SEND, c_void_p, c_void_p, c_void_p)
    poll_cq = operation(context, POLL_CQ, c_void_p, c_int, c_void_p)
    recv = RecvWr(sg_list=ctypes.pointer(sges[1]), num_sge=1)
    send = SendWr(sg_list=ctypes.pointer(sges[0]), num_sge=1, opcode=2, send_flags=2)
    assert post_recv(qps[1], ctypes.addressof(recv), ctypes.addressof(bad)) == 0
    assert post_send(qps[0], ctypes.addressof(send), ctypes.addressof(bad)) == 0
    done = 0
    while done < 2:
        wc = Wc()
        if poll_cq(cq, 1, ctypes.addressof(wc)) == 1:
            assert wc.status == 0, wc.status
            done += 1
    assert source.raw == target.raw
    for qp in qps:
        assert lib.ibv_destroy_qp(c_void_p(qp)) == 0
    for mr in mrs:
        assert lib.ibv_dereg_mr(c_void_p(mr)) == 0
    assert lib.ibv_destroy_cq(c_void_p(cq)) == 0 and lib.ibv_dealloc_pd(c_void_p(pd)) == 0


def main(names):
    if names[0] == "--child":
        sys.exit(subprocess.run([sys.executable, __file__, *names[1:]]).returncode)
    lib = load(names)
    context = open_device(lib)
    move_data(lib, context)
    assert lib.ibv_close_device(c_void_p(context)) == 0


main(sys.argv[1:])
