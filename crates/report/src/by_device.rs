//! The part of a report that is about one of the process's devices.

use std::collections::HashSet;

use crate::facts::{Cm, CmId, Port};
use crate::{Device, Report};

/// `RDMA_PS_TCP` of rdma_cma.h, the port space of connections.
const PS_TCP: u16 = 0x0106;

impl Report {
    /// The objects of one device, and that device's counters. Packets are softrnic0's: softiw0 has none.
    pub fn of_device(&self, device: Device) -> Report {
        let mut part = self.clone();
        let wanted = device.is_iwarp();
        let adapter = &mut part.adapter;
        let its = std::mem::take(&mut adapter.softiw0);
        let set = |handles: &[u32]| handles.iter().copied().collect::<HashSet<u32>>();
        let (pds, mrs, qps, cqs, srqs) = (set(&its.pds), set(&its.mrs), set(&its.qps), set(&its.cqs), set(&its.srqs));
        adapter.contexts = if wanted { its.contexts } else { adapter.contexts.saturating_sub(its.contexts) };
        adapter.pd_list.retain(|pd| pds.contains(&pd.handle) == wanted);
        adapter.mr_list.retain(|mr| mrs.contains(&mr.handle) == wanted);
        adapter.qps.retain(|qp| qps.contains(&qp.number) == wanted);
        adapter.cqs.retain(|cq| cqs.contains(&cq.handle) == wanted);
        adapter.srqs.retain(|srq| srqs.contains(&srq.handle) == wanted);
        (adapter.pds, adapter.mrs) = (adapter.pd_list.len() as u32, adapter.mr_list.len() as u32);
        adapter.softiw0 = its;
        let has = |device: Device| part.adapter.devices.iter().any(|name| name == device.name());
        let has_both = has(Device::Roce) && has(Device::Iwarp);
        if let Some(Cm { ids, .. }) = &mut part.cm {
            // A listener of connections takes the requests of both devices.
            let of_both = |id: &CmId| has_both && id.phase == "listen" && id.port_space == PS_TCP;
            ids.retain(|id| id.iwarp == wanted || of_both(id));
        }
        if wanted && has(Device::Roce) || !wanted && has(Device::Iwarp) && !has(Device::Roce) {
            part.adapter.port = Port::default();
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Adapter, Cq, Mr, Pd, Softiw0};

    #[test]
    fn each_object_is_of_one_device() {
        let pd = |handle| Pd { handle, users: 0 };
        let adapter = Adapter {
            contexts: 3,
            pds: 2,
            mrs: 2,
            pd_list: vec![pd(1), pd(2)],
            mr_list: vec![Mr { handle: 1, bytes: 8, pd: 1 }, Mr { handle: 2, bytes: 8, pd: 2 }],
            cqs: vec![Cq { handle: 1, ..Cq::default() }, Cq { handle: 2, ..Cq::default() }],
            devices: vec!["softrnic0".into(), "softiw0".into()],
            softiw0: Softiw0 { contexts: 1, pds: vec![2], mrs: vec![2], cqs: vec![1], ..Softiw0::default() },
            port: Port { packets_out: 7, ..Port::default() },
            ..Adapter::default()
        };
        let listener = |number, port_space| CmId { number, port_space, phase: "listen".into(), ..CmId::default() };
        let ids = vec![
            CmId { number: 1, iwarp: true, ..CmId::default() },
            CmId { number: 2, ..CmId::default() },
            listener(3, PS_TCP),
            listener(4, PS_TCP + 5),
        ];
        let cm = Some(Cm { ids, ..Cm::default() });
        let whole = Report { adapter, cm, ..Report::default() };
        let found = |device| {
            let part = whole.of_device(device);
            let adapter = part.adapter;
            let ids: Vec<u32> = part.cm.iter().flat_map(|cm| &cm.ids).map(|id| id.number).collect();
            let handles = (adapter.pd_list[0].handle, adapter.mr_list[0].handle, adapter.cqs[0].handle);
            (adapter.contexts, adapter.pds, adapter.mrs, adapter.cqs.len(), handles, ids, adapter.port.packets_out)
        };
        assert_eq!(found(Device::Roce), (2, 1, 1, 1, (1, 1, 2), vec![2, 3, 4], 7));
        assert_eq!(found(Device::Iwarp), (1, 1, 1, 1, (2, 2, 1), vec![1, 3], 0));
    }
}
