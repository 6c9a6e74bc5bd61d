//! Events, as the kernel's connection manager reports them to librdmacm.

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)] // the names are the man page's
pub enum EventKind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    RouteError = 3,
    ConnectRequest = 4,
    ConnectResponse = 5,
    ConnectError = 6,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    DeviceRemoval = 11,
    MulticastJoin = 12,
    MulticastError = 13,
    AddrChange = 14,
    TimewaitExit = 15,
    AddrinfoResolved = 16,
    AddrinfoError = 17,
    User = 18,
}

/// Enhanced connection establishment (`struct ibv_ece`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Vendor.
    pub vendor_id: u32,
    /// The vendor's options.
    pub options: u32,
}

/// `struct rdma_conn_param` of an event, in the view of the program that gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the man page's
pub struct ConnParams {
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: bool,
    pub qpn: u32,
    pub ece: Ece,
}

/// `struct rdma_ud_param` of an event; the address is the id's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdParams {
    /// Remote queue pair.
    pub qpn: u32,
    /// The queue key of that queue pair.
    pub qkey: u32,
}

/// The parameters of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Params {
    /// Nothing.
    #[default]
    None,
    /// Parameters of a connection.
    Conn(ConnParams),
    /// Parameters of a datagram service.
    Ud(UdParams),
    /// A multicast group: its number among the id's.
    Group(u64),
    /// The argument of an event that the program wrote itself.
    User(u64),
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// 0, a negative errno, or the reason or status that the peer gave.
    pub status: i32,
    /// Its parameters.
    pub params: Params,
    /// The peer's private data, padded with zeros to the length that its message can carry, as adapters report it.
    pub data: Vec<u8>,
}

impl Event {
    /// An event with a kind only.
    pub fn new(kind: EventKind) -> Self {
        Event { kind, status: 0, params: Params::None, data: Vec::new() }
    }

    /// An event with a kind and a status.
    pub fn with_status(kind: EventKind, status: i32) -> Self {
        Event { status, ..Event::new(kind) }
    }

    pub(crate) fn data(mut self, mut data: Vec<u8>, padded: usize) -> Self {
        data.resize(padded, 0);
        self.data = data;
        self
    }
}
