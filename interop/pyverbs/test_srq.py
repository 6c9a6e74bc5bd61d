"""Shared receive queues.

rdma-core's suite has tests of this name and these subjects in later versions than Debian 12's; this file stands in for
them on the base of the version that is installed.
"""

import errno

import pyverbs.enums as e
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.srq import SrqAttr

from tests.base import RCResources, RDMATestCase
import tests.utils as u


class SrqTestCase(RDMATestCase):
    def setUp(self):
        super().setUp()
        self.iters = 100
        self.client = RCResources(**self.dev_info, qp_count=2, with_srq=True)
        self.server = RCResources(**self.dev_info, qp_count=2, with_srq=True)
        self.client.pre_run(self.server.psns, self.server.qps_num)
        self.server.pre_run(self.client.psns, self.client.qps_num)

    def test_rc_srq_traffic(self):
        """Two queue pairs on each side receive from one queue."""
        u.traffic(self.client, self.server, self.iters, self.gid_index, self.ib_port)

    def test_resize_srq(self):
        """The queue grows to what is asked, and says so."""
        attr = self.server.ctx.query_device()
        self.assertTrue(attr.device_cap_flags & e.IBV_DEVICE_SRQ_RESIZE, 'an SRQ can be resized')
        wanted = min(attr.max_srq_wr, self.server.srq.query().max_wr * 2)
        self.server.srq.modify(SrqAttr(max_wr=wanted), e.IBV_SRQ_MAX_WR)
        self.assertGreaterEqual(self.server.srq.query().max_wr, wanted)

    def test_modify_srq_limit(self):
        """Falling below the limit raises the event once, and disarms the limit."""
        for _ in range(10):
            self.server.srq.post_recv(u.get_recv_wr(self.server))
        self.server.srq.modify(SrqAttr(srq_limit=7), e.IBV_SRQ_LIMIT)
        self.assertEqual(self.server.srq.query().srq_limit, 7)
        for _ in range(4):
            send_wr, _ = u.get_send_elements(self.client, False)
            u.send(self.client, send_wr)
            u.poll_cq(self.client.cq)
            u.poll_cq(self.server.cq)
        event = self.server.ctx.get_async_event()
        event.ack()
        self.assertEqual(event.event_type, e.IBV_EVENT_SRQ_LIMIT_REACHED)
        self.assertEqual(self.server.srq.query().srq_limit, 0)

    def test_full_srq(self):
        """One receive more than fits."""
        max_wr = self.server.srq.query().max_wr
        with self.assertRaises(PyverbsRDMAError) as ex:
            for _ in range(max_wr + 1):
                self.server.srq.post_recv(u.get_recv_wr(self.server))
        self.assertEqual(ex.exception.error_code, errno.ENOMEM)
