//! Two processes, each with its adapter: messages, one-sided operations to a passive target, events, death.
//!
//! The child is this test binary again, with its part in an environment variable. The two processes communicate over
//! the child's stdin and stdout.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nic::{CompChannel, CqOpts, Nic};
use verbs::*;

const ROLE: &str = "SOFTRNIC_TEST_ROLE";

struct Side {
    nic: &'static Nic,
    cq: CqId,
    channel: std::sync::Arc<CompChannel>,
    qp: QpId,
    qpn: Qpn,
    memory: &'static mut [u8],
    key: u32,
}

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

impl Side {
    fn new() -> Side {
        let nic = Nic::get().unwrap();
        let context = Box::leak(Box::new(nic.open(report::Device::Roce).unwrap()));
        let memory = Box::leak(vec![0u64; 1 << 18].into_boxed_slice());
        let (addr, len) = (memory.as_ptr() as u64, std::mem::size_of_val(memory));
        let pd = nic.lock().alloc_pd(context.id).unwrap();
        let (_, key, _) = nic.reg_mr(pd, addr, len as u64, addr, ALL).unwrap();
        let (cq, _) = nic.lock().create_cq(context.id, 256, 1, CqOpts::default()).unwrap();
        let channel = nic.create_channel().unwrap();
        nic.bind_cq_channel(cq, &channel);
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
        let init = QpInit {
            pd: Some(pd),
            qp_type: QpType::Rc,
            send_cq: Some(cq),
            recv_cq: Some(cq),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: true,
        };
        let (qp, created) = nic.create_qp(context.id, &init, 2).unwrap();
        let bytes = bytes_of(memory);
        Side { nic, cq, channel, qp, qpn: created.qpn, memory: bytes, key: key.0 }
    }

    fn hello(&self) -> String {
        format!("{} {} {}", self.qpn.get(), self.key, self.memory.as_ptr() as u64)
    }

    fn connect(&self, peer: &str) -> (u64, RKey) {
        let n: Vec<u64> = peer.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let mut attr = QpAttr {
            path_mtu: 5,
            dest_qp_num: n[0] as u32,
            access: ALL,
            ah: AhAttr {
                dgid: self.nic.gids(report::Device::Roce)[0].gid,
                is_global: true,
                port_num: 1,
                ..Default::default()
            },
            max_rd_atomic: 8,
            max_dest_rd_atomic: 8,
            min_rnr_timer: 12,
            port_num: 1,
            timeout: 14, // a loaded machine may not run the peer for a while
            retry_cnt: 7,
            rnr_retry: 7,
            ..Default::default()
        };
        let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
        for pair in states.windows(2) {
            attr.state = pair[1];
            let (mask, _) = state::transition(QpType::Rc, pair[0], pair[1]).unwrap();
            self.nic.modify_qp(self.qp, &attr, mask | QpAttrMask::STATE).unwrap();
        }
        (n[2], RKey(n[1] as u32))
    }

    fn post(&self, opcode: Opcode, body: SendBody, at: usize, len: u32) {
        let sge = Sge { addr: self.memory.as_ptr() as u64 + at as u64, length: len, lkey: LKey(self.key) };
        let wr = SendWr {
            wr_id: 1,
            opcode,
            flags: SendFlags::SIGNALED,
            imm_or_rkey: 0,
            remote_srqn: 0,
            body: &body,
            data: SendData::Sges(&[sge]),
        };
        self.nic.post_send(self.qp, &wr).unwrap();
    }

    fn recv(&self, at: usize, len: u32) {
        let sge = Sge { addr: self.memory.as_ptr() as u64 + at as u64, length: len, lkey: LKey(self.key) };
        self.nic.post_recv(self.qp, &RecvWr { wr_id: 2, sges: &[sge] }).unwrap();
    }

    fn poll(&self) -> Completion {
        let until = Instant::now() + Duration::from_secs(20);
        let mut wc = Completion::default();
        while self.nic.poll_cq(self.cq, 1, |_, completion| wc = *completion) == 0 {
            assert!(Instant::now() < until, "no completion");
        }
        wc
    }

    fn wait(&self) -> Completion {
        let mut wc = Completion::default();
        loop {
            self.nic.arm_cq(self.cq, false).unwrap();
            if self.nic.poll_cq(self.cq, 1, |_, completion| wc = *completion) == 1 {
                return wc;
            }
            assert_eq!(self.nic.get_cq_event(&self.channel), Ok(1));
            self.nic.ack_cq_events(self.cq, 1);
        }
    }
}

fn bytes_of(words: &'static mut [u64]) -> &'static mut [u8] {
    // SAFETY: every byte of a word is a byte, and the slice is not used otherwise.
    let (_, bytes, _) = unsafe { words.align_to_mut::<u8>() };
    bytes
}

/// The child's part: connect, then do what the lines of stdin say.
fn child() {
    let side = Side::new();
    let mut lines = std::io::stdin().lines().map(|l| l.unwrap());
    println!("\nHELLO {}", side.hello());
    side.connect(&lines.next().unwrap());
    println!("\nREADY");
    for line in lines {
        match line.as_str() {
            "echo" => {
                side.recv(0, 8);
                println!("\nREADY");
                for _ in 0..20_000 {
                    assert_eq!(side.poll().status, WcStatus::Success);
                    side.recv(0, 8);
                    side.post(Opcode::Send, SendBody::Plain, 0, 8);
                    assert_eq!(side.poll().status, WcStatus::Success);
                }
            }
            "events" => {
                side.recv(0, 8);
                println!("\nREADY");
                for _ in 0..500 {
                    while side.wait().opcode != WcOpcode::Recv {}
                    side.recv(0, 8);
                    side.post(Opcode::Send, SendBody::Plain, 0, 8);
                }
            }
            "sleep" => std::thread::sleep(Duration::from_secs(60)),
            _ => return,
        }
    }
}

struct Peer {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn line(&mut self, prefix: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "the child ended");
            if let Some(rest) = line.strip_prefix(prefix) {
                return rest.trim().to_owned();
            }
        }
    }
    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

#[test]
fn two_processes() {
    if std::env::var_os(ROLE).is_some() {
        return child();
    }
    let mut cmd = Command::new(std::env::current_exe().unwrap());
    cmd.args(["--exact", "two_processes", "--nocapture"]).env(ROLE, "child");
    let mut spawned = cmd.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(spawned.stdout.take().unwrap());
    let mut peer = Peer { child: spawned, out };
    let side = Side::new();
    let hello = peer.line("HELLO ");
    peer.tell(&side.hello());
    let (addr, rkey) = side.connect(&hello);
    peer.line("READY");

    // A passive target: the child blocks on its stdin.
    let body = SendBody::Rdma { remote_addr: addr, rkey };
    let data: Vec<u8> = (0..1_000_000u32).map(|i| (i * 7) as u8).collect();
    let memory = side.memory.as_ptr() as usize;
    side.nic.lock(); // the lock can be taken and released
    for len in [1usize, 8, 4096, 16384, 16385, 1_000_000] {
        // SAFETY: `memory` is the side's leaked buffer of 2 MiB, longer than `len`.
        unsafe { std::ptr::copy(data.as_ptr(), memory as *mut u8, len) };
        side.post(Opcode::RdmaWrite, body, 0, len as u32);
        assert_eq!(side.poll().status, WcStatus::Success);
        side.post(Opcode::RdmaRead, body, 1_000_000, len as u32);
        assert_eq!(side.poll().status, WcStatus::Success);
        assert_eq!(side.memory[1_000_000..1_000_000 + len], data[..len]);
    }
    let atomic = SendBody::Atomic { remote_addr: addr, rkey, compare_add: 1, swap: 0 };
    for _ in 0..100 {
        side.post(Opcode::FetchAndAdd, atomic, 0, 8);
        assert_eq!(side.poll().status, WcStatus::Success);
    }

    side.recv(0, 8);
    peer.tell("echo");
    peer.line("READY");
    let start = Instant::now();
    for _ in 0..20_000 {
        side.post(Opcode::Send, SendBody::Plain, 8, 8);
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            let wc = side.poll();
            assert_eq!(wc.status, WcStatus::Success);
            if wc.opcode == WcOpcode::Recv { received = true } else { sent = true }
        }
        side.recv(0, 8);
    }
    println!("polled: {:.2} us one way", start.elapsed().as_secs_f64() * 1e6 / 40_000.0);

    peer.tell("events");
    peer.line("READY");
    let start = Instant::now();
    for _ in 0..500 {
        side.post(Opcode::Send, SendBody::Plain, 8, 8);
        while side.wait().opcode != WcOpcode::Recv {}
        side.recv(0, 8);
    }
    println!("events: {:.2} us one way", start.elapsed().as_secs_f64() * 1e6 / 1_000.0);
    while side.nic.poll_cq(side.cq, 1, |_, _| {}) > 0 {}

    // Death: the request ends within (retry_cnt + 1) * 4.096 us * 2^14.
    peer.tell("sleep");
    let child = peer.child.id() as i32;
    // SAFETY: signals and waits for this process's own child, which has not been waited for.
    unsafe {
        libc::kill(child, libc::SIGSTOP);
        libc::waitpid(child, std::ptr::null_mut(), libc::WUNTRACED); // it has stopped
    }
    if std::env::var("SOFTRNIC_SINGLE_COPY").as_deref() != Ok("0") {
        // The child's memory is still there for a request that needs nothing else of it, as an adapter would have it.
        side.post(Opcode::RdmaWrite, body, 0, 16384);
        assert_eq!(side.wait().status, WcStatus::Success);
    }
    for _ in 0..40 {
        side.post(Opcode::Send, SendBody::Plain, 0, 16384); // more than the link holds
    }
    peer.child.kill().unwrap();
    peer.child.wait().unwrap();
    assert_eq!(side.wait().status, WcStatus::RetryExcErr);
    for _ in 1..40 {
        assert_eq!(side.wait().status, WcStatus::WrFlushErr);
    }

    // The process is idle now: it uses no processor time, although the link to the dead process was full.
    std::thread::sleep(Duration::from_millis(100));
    let before = cpu_time();
    std::thread::sleep(Duration::from_millis(500));
    let used = cpu_time() - before;
    assert!(used < Duration::from_millis(100), "{used:?} of processor time while idle");
}

/// The processor time of this process so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
