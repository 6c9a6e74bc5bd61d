//! The requests, and which part answers each: the client NLDEV (drivers/infiniband/core/nldev.c in Linux).

use report::{Device as Kind, Report};
use rustix::io::Errno;
use view::port;
use view::tree::{FW_VER, UVERBS_ABI, UVERBS_MAJOR, UVERBS_MINOR, ViewInfo};

use crate::World;
use crate::message::{self, ACK, DUMP, ERROR, FIRST_TYPE, HEADER, Header, MULTI, REQUEST, Writer};
use crate::numbers::{NLDEV, attr, cmd};
use crate::resources;

/// The port's number.
pub(crate) const PORT: u32 = 1;
/// `IB_PORT_ACTIVE`.
const ACTIVE: u8 = 4;
/// `IB_PORT_PHYS_STATE_LINK_UP`.
const LINK_UP: u8 = 5;
/// `RDMA_NODE_IB_CA`.
const NODE_CA: u8 = 1;
/// `RDMA_NODE_RNIC`.
const NODE_RNIC: u8 = 4;
/// CM, and on Ethernet IP-based GIDs: `IB_PORT_CM_SUP`, `IB_PORT_IP_BASED_GIDS`.
const PORT_CAPS: (u64, u64) = (0x0001_0000, 0x0401_0000);

/// A request that is being answered.
pub(crate) struct Request<'a> {
    pub header: Header,
    /// Its attributes.
    pub body: &'a [u8],
    whole: &'a [u8],
    /// `nlmsg_pid` of the answers.
    port: u32,
}

/// The device as answers name it.
pub(crate) struct Device {
    pub info: ViewInfo,
    pub index: u32,
}

impl Request<'_> {
    fn command(&self) -> u16 {
        self.header.kind & 0x3ff
    }

    pub fn is_dump(&self) -> bool {
        self.header.flags & DUMP != 0
    }

    fn answer_header(&self, flags: u16) -> Header {
        Header { kind: self.header.kind, flags, seq: self.header.seq, port: self.port }
    }

    /// An answer about the device, which begins with the device's name as all do.
    pub fn about(&self, device: &Device) -> Writer {
        let mut answer = Writer::new(self.answer_header(if self.is_dump() { MULTI } else { 0 }));
        answer.u32(attr::DEV_INDEX, device.index);
        answer.text(attr::DEV_NAME, device.info.device.name());
        answer
    }
}

/// The result of a request: messages, or an errno.
pub(crate) type Answer = Result<Vec<Vec<u8>>, Errno>;

/// The datagrams that answer a datagram from a socket whose port is `port`.
pub fn answer(datagram: &[u8], port: u32, world: &dyn World) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    for (header, whole) in message::messages(datagram) {
        let request = Request { header, body: &whole[HEADER..], whole, port };
        // As in rdma_nl_rcv_skb, a message that is no request is acknowledged, if that is asked for.
        let result = match header.flags & REQUEST != 0 && header.kind >= FIRST_TYPE {
            true => request.answer(world),
            false => Ok(Reply::Own(Vec::new())),
        };
        let reply_to = Header { port, ..header };
        match result {
            Ok(Reply::Kernel(messages)) => answers.extend(messages),
            Ok(Reply::Own(messages)) => {
                answers.extend(messages);
                if request.is_dump() {
                    answers.push(message::done(request.answer_header(MULTI)));
                } else if header.flags & ACK != 0 {
                    answers.push(message::error(reply_to, whole.len(), 0));
                }
            }
            Err(errno) => answers.push(message::error(reply_to, whole.len(), errno.raw_os_error())),
        }
    }
    answers
}

/// The origin of an answer.
enum Reply {
    /// This crate's: the end of the dump, or the acknowledgement, is still to come.
    Own(Vec<Vec<u8>>),
    /// The kernel's, which is complete.
    Kernel(Vec<Vec<u8>>),
}

impl Request<'_> {
    fn answer(&self, world: &dyn World) -> Result<Reply, Errno> {
        let kernel = || world.kernel(self.whole).map(|all| Reply::Kernel(self.readdressed(&all)));
        if self.header.kind >> 10 != NLDEV {
            return kernel().ok_or(Errno::INVAL);
        }
        let devices = || {
            let infos = world.infos();
            let first = free_index(&infos, world, self.header.seq);
            infos.into_iter().map(move |info| Device { index: first.saturating_add(info.place), info })
        };
        let named = message::number(self.body, attr::DEV_INDEX);
        let command = self.command();
        let for_all = matches!(command, cmd::GET | cmd::RES_GET) && self.is_dump();
        match (for_all, named) {
            (true, _) => {
                let mut messages = Vec::new();
                for device in devices() {
                    messages.extend(self.answer_for(&device, world)?);
                }
                let real = world.kernel(self.whole).unwrap_or_default();
                messages.extend(self.readdressed(&real).into_iter().filter(|one| !is_end(one)));
                Ok(Reply::Own(messages))
            }
            (false, Some(index)) => match devices().find(|device| device.index == index) {
                Some(device) => self.answer_for(&device, world).map(Reply::Own),
                None => kernel().ok_or(Errno::INVAL),
            },
            (false, None) => match kernel() {
                Some(reply) => Ok(reply),
                None => self.answer_for_none().map(Reply::Own),
            },
        }
    }

    /// The messages of datagrams one by one, with the port of the program's socket.
    fn readdressed(&self, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let all = datagrams.iter().flat_map(|datagram| message::messages(datagram));
        all.map(|(_, whole)| {
            let mut whole = whole.to_vec();
            whole[12..16].copy_from_slice(&self.port.to_ne_bytes());
            whole
        })
        .collect()
    }

    /// The answer to a request about no device.
    fn answer_for_none(&self) -> Answer {
        match (self.command(), self.is_dump()) {
            (cmd::SYS_GET, false) => {
                let mut answer = Writer::new(self.answer_header(0));
                answer.u8(attr::SYS_NETNS_MODE, 1); // shared, which is Linux's default
                Ok(vec![answer.finish()])
            }
            (cmd::SYS_SET, false) => Err(Errno::OPNOTSUPP),
            _ => Err(Errno::INVAL),
        }
    }

    fn answer_for(&self, device: &Device, world: &dyn World) -> Answer {
        let reports = || world.reports().iter().map(|report| report.of_device(device.info.device)).collect::<Vec<_>>();
        match (self.command(), self.is_dump()) {
            (cmd::GET, _) => Ok(vec![self.device(device)]),
            (cmd::PORT_GET, dump) => {
                if !dump {
                    self.port()?;
                }
                Ok(vec![self.port_info(device)])
            }
            (cmd::GET_CHARDEV, false) => self.character_device(device),
            (cmd::RES_GET, _) => Ok(vec![resources::summary(self, device, &reports())]),
            (cmd::STAT_GET, _) => self.statistic(device, &reports),
            (cmd::STAT_GET_STATUS, false) => {
                self.port()?;
                let mut answer = self.about(device);
                answer.u32(attr::PORT_INDEX, PORT);
                answer.u32(attr::STAT_MODE, 0); // RDMA_COUNTER_MODE_NONE
                Ok(vec![answer.finish()])
            }
            (cmd::SET | cmd::NEWLINK | cmd::DELLINK | cmd::STAT_SET | cmd::STAT_DEL, false) => Err(Errno::OPNOTSUPP),
            (command, _) => resources::answer(self, command, device, &reports),
        }
    }

    /// The port that a request must name.
    fn port(&self) -> Result<(), Errno> {
        (message::number(self.body, attr::PORT_INDEX) == Some(PORT)).then_some(()).ok_or(Errno::INVAL)
    }

    /// `fill_dev_info`.
    fn device(&self, device: &Device) -> Vec<u8> {
        let mut answer = self.about(device);
        answer.u32(attr::PORT_INDEX, PORT); // the last port's number
        let flags = match device.info.device {
            Kind::Iwarp => verbs::limits::IWARP_CAP_FLAGS,
            Kind::Roce => verbs::limits::DEVICE_CAP_FLAGS,
        };
        answer.u64(attr::CAP_FLAGS, flags.into());
        answer.text(attr::FW_VERSION, FW_VER);
        answer.u64(attr::NODE_GUID, device.info.guid);
        answer.u64(attr::SYS_IMAGE_GUID, device.info.guid);
        answer.u8(attr::DEV_NODE_TYPE, if device.info.device.is_iwarp() { NODE_RNIC } else { NODE_CA });
        answer.u8(attr::DEV_DIM, 0);
        let protocol = match device.info.device {
            Kind::Iwarp => "iw",
            Kind::Roce if device.info.link_layer.is_infiniband() => "ib",
            Kind::Roce => "roce",
        };
        answer.text(attr::DEV_PROTOCOL, protocol);
        answer.finish()
    }

    /// `fill_port_info`.
    fn port_info(&self, device: &Device) -> Vec<u8> {
        let mut answer = self.about(device);
        let link_layer = device.info.link_layer;
        answer.u32(attr::PORT_INDEX, PORT);
        let (infiniband, ethernet) = PORT_CAPS;
        answer.u64(attr::CAP_FLAGS, if link_layer.is_infiniband() { infiniband } else { ethernet });
        if link_layer.is_infiniband() {
            let gid = device.info.gids.first().map_or([0; 16], |entry| entry.gid.0);
            let prefix = gid.iter().take(8).fold(0, |prefix, byte| prefix << 8 | u64::from(*byte));
            answer.u64(attr::SUBNET_PREFIX, prefix);
            answer.u32(attr::LID, link_layer.lid().into());
            answer.u32(attr::SM_LID, port::SM_LID.into());
            answer.u8(attr::LMC, 0);
        }
        answer.u8(attr::PORT_STATE, ACTIVE);
        answer.u8(attr::PORT_PHYS_STATE, LINK_UP);
        if let Some(first) = device.info.gids.first().filter(|entry| !entry.ifname.is_empty()) {
            answer.u32(attr::NDEV_INDEX, first.ifindex);
            answer.text(attr::NDEV_NAME, &first.ifname);
        }
        answer.finish()
    }

    /// `nldev_get_chardev`.
    fn character_device(&self, device: &Device) -> Answer {
        if message::attribute(self.body, attr::CHARDEV_TYPE) != Some(b"uverbs\0") {
            return Err(Errno::OPNOTSUPP);
        }
        let n = device.info.uverbs_index();
        let mut answer = Writer::new(self.answer_header(0));
        // The kernel's huge_encode_dev, for numbers this small.
        answer.u64(attr::CHARDEV, u64::from(UVERBS_MAJOR << 8 | (UVERBS_MINOR + n)));
        answer.u64(attr::CHARDEV_ABI, UVERBS_ABI.into());
        answer.text(attr::CHARDEV_NAME, &format!("uverbs{n}"));
        Ok(vec![answer.finish()])
    }

    /// `nldev_stat_get_doit` and `nldev_stat_get_dumpit`. Counters that are bound to queue pairs do not exist here.
    fn statistic(&self, device: &Device, reports: &dyn Fn() -> Vec<Report>) -> Answer {
        let about_objects = message::attribute(self.body, attr::STAT_RES).is_some();
        match (self.is_dump(), about_objects) {
            (true, true) => Ok(vec![]),
            (true, false) => Err(Errno::INVAL),
            (false, true) => Err(Errno::OPNOTSUPP),
            (false, false) => {
                self.port()?;
                Ok(vec![resources::counters(self, device, &reports())])
            }
        }
    }
}

/// True for the message that ends a dump.
fn is_end(whole: &[u8]) -> bool {
    message::messages(whole).next().is_none_or(|(header, _)| matches!(header.kind, message::DONE | ERROR))
}

/// The first device's index: 0, or the first behind those of the real adapters in sight.
fn free_index(infos: &[ViewInfo], world: &dyn World, seq: u32) -> u32 {
    if infos.iter().all(|info| info.hardware.devices.is_empty()) {
        return 0;
    }
    let header = Header { kind: NLDEV << 10 | cmd::GET, flags: REQUEST | DUMP, seq, port: 0 };
    let real = world.kernel(&Writer::new(header).finish()).unwrap_or_default();
    let all = real.iter().flat_map(|datagram| message::messages(datagram));
    let indices = all.filter_map(|(_, whole)| message::number(&whole[HEADER..], attr::DEV_INDEX));
    indices.max().map_or(0, |last| last.saturating_add(1))
}

#[cfg(test)]
#[path = "nldev_tests.rs"]
mod tests;
