//! Violations of the driver contract: each case prepares a situation, violates one rule with its last call and returns
//! that call's result. Drivers may report a violation in different ways, but all must name the rule with these words.

use crate::suite::{Mapped, recorded};
use gapless::driver::{ChunkHandle, DriverResult, HoldStreams};
use gapless::units::StreamId;

/// A violation: its name, words that the report must contain, and the calls.
pub struct Case<D> {
    pub name: &'static str,
    pub rule: &'static str,
    pub run: fn(&D) -> DriverResult<()>,
}

pub fn cases<D: HoldStreams>() -> Vec<Case<D>> {
    let case = |name, rule, run| Case { name, rule, run };
    vec![
        case("unmap of half a mapping, front", "unmap of part of a mapping: it ends", |d: &D| {
            let mapped = Mapped::new(d, 1, 2);
            d.unmap(mapped.addr, d.granularity())
        }),
        case("unmap of half a mapping, back", "unmap of part of a mapping: it starts", |d: &D| {
            let mapped = Mapped::new(d, 1, 2);
            d.unmap(mapped.addr.offset(d.granularity()), d.granularity())
        }),
        case("unmap over unmapped addresses", "over unmapped addresses", |d: &D| {
            let mapped = Mapped::new(d, 3, 1);
            d.unmap(mapped.addr.offset(d.granularity()), d.granularity())?;
            d.unmap(mapped.addr, mapped.bytes)
        }),
        case("unmap of nothing", "over unmapped addresses", |d: &D| {
            let addr = d.reserve(d.granularity(), d.granularity())?;
            d.unmap(addr, d.granularity())
        }),
        case("unmap past the mappings", "over unmapped addresses", |d: &D| {
            let mapped = Mapped::new(d, 1, 1);
            d.unmap(mapped.addr, 2 * d.granularity())
        }),
        case("unmap under queued work", "in flight", |d: &D| {
            let mapped = Mapped::new(d, 2, 1);
            d.hold(StreamId::DEFAULT);
            d.fill(StreamId::DEFAULT, mapped.addr.offset(d.granularity()), 16, 1)?;
            d.unmap(mapped.addr, d.granularity())?;
            d.unmap(mapped.addr.offset(d.granularity()), d.granularity())
        }),
        case("unmap under work that waits for another stream", "in flight", |d: &D| {
            let mapped = Mapped::new(d, 1, 1);
            let other = d.create_stream()?;
            d.hold(StreamId::DEFAULT);
            let event = recorded(d, StreamId::DEFAULT);
            d.stream_wait(other, event)?;
            d.verify(other, mapped.addr, 16, 1)?;
            d.unmap(mapped.addr, mapped.bytes)
        }),
        case("unaligned unmap", "not a multiple of the page", |d: &D| {
            let mapped = Mapped::new(d, 1, 2);
            d.unmap(mapped.addr.offset(512), d.granularity())
        }),
        case("set_access of half a mapping", "set_access of part of a mapping", |d: &D| {
            let mapped = Mapped::new(d, 1, 2);
            d.set_access(mapped.addr, d.granularity())
        }),
        case("set_access without a mapping", "over unmapped addresses", |d: &D| {
            let addr = d.reserve(d.granularity(), d.granularity())?;
            d.set_access(addr, d.granularity())
        }),
        case("map over a mapping", "map over a mapping", |d: &D| {
            let mapped = Mapped::new(d, 1, 2);
            let chunk = d.create(2 * d.granularity())?;
            d.map(mapped.addr.offset(d.granularity()), 2 * d.granularity(), chunk)
        }),
        case("map outside of a reservation", "inside one reservation", |d: &D| {
            let page = d.granularity();
            let addr = d.reserve(page, page)?;
            d.address_free(addr, page)?;
            let chunk = d.create(page)?;
            d.map(addr, page, chunk)
        }),
        case("map past the end of a reservation", "inside one reservation", |d: &D| {
            let page = d.granularity();
            let addr = d.reserve(2 * page, page)?;
            let chunk = d.create(2 * page)?;
            d.map(addr.offset(page), 2 * page, chunk)
        }),
        case("map at an unaligned address", "not a multiple of the page", |d: &D| {
            let page = d.granularity();
            let addr = d.reserve(2 * page, page)?;
            let chunk = d.create(page)?;
            d.map(addr.offset(page / 2), page, chunk)
        }),
        case("map of a part of a chunk", "mapped whole", |d: &D| {
            let page = d.granularity();
            let addr = d.reserve(2 * page, page)?;
            let chunk = d.create(2 * page)?;
            d.map(addr, page, chunk)
        }),
        case("map of a released chunk", "which was released", |d: &D| {
            let page = d.granularity();
            let addr = d.reserve(page, page)?;
            let chunk = d.create(page)?;
            d.release(chunk)?;
            d.map(addr, page, chunk)
        }),
        case("map of a released chunk that is still mapped", "which was released", |d: &D| {
            let page = d.granularity();
            let addr = d.reserve(2 * page, page)?;
            let chunk = d.create(page)?;
            d.map(addr, page, chunk)?;
            d.release(chunk)?;
            d.map(addr.offset(page), page, chunk)
        }),
        case("release twice", "which was released", |d: &D| {
            let chunk = d.create(d.granularity())?;
            d.release(chunk)?;
            d.release(chunk)
        }),
        case("release of a foreign handle", "not a handle of this driver", |d: &D| d.release(ChunkHandle(1))),
        case("create of nothing", "positive multiple of the page", |d: &D| d.create(0).map(drop)),
        case("create of part of a page", "positive multiple of the page", |d: &D| d.create(512).map(drop)),
        case("address_free under a mapping", "with a mapping in it", |d: &D| {
            let mapped = Mapped::new(d, 1, 1);
            d.address_free(mapped.addr, 2 * d.granularity())
        }),
        case("address_free of half", "a reservation of", |d: &D| {
            let addr = d.reserve(2 * d.granularity(), d.granularity())?;
            d.address_free(addr, d.granularity())
        }),
        case("address_free from the middle", "no reservation starts", |d: &D| {
            let page = d.granularity();
            let addr = d.reserve(2 * page, page)?;
            d.address_free(addr.offset(page), page)
        }),
        case("work without access", "set_access has not covered it", |d: &D| {
            let page = d.granularity();
            let addr = d.reserve(page, page)?;
            let chunk = d.create(page)?;
            d.map(addr, page, chunk)?;
            d.fill(StreamId::DEFAULT, addr, 16, 1)
        }),
        case("work after a remap without access", "set_access has not covered it", |d: &D| {
            let mapped = Mapped::new(d, 2, 1);
            let chunk = d.create(d.granularity())?;
            d.unmap(mapped.addr, d.granularity())?;
            d.map(mapped.addr, d.granularity(), chunk)?;
            d.verify(StreamId::DEFAULT, mapped.addr.offset(512), 16, 1)
        }),
        case("work past a mapping", "not mapped", |d: &D| {
            let mapped = Mapped::new(d, 1, 1);
            d.copy(StreamId::DEFAULT, mapped.addr, mapped.addr.offset(d.granularity() - 8), 16)
        }),
        case("copy onto itself", "overlap", |d: &D| {
            let mapped = Mapped::new(d, 1, 1);
            d.copy(StreamId::DEFAULT, mapped.addr, mapped.addr.offset(8), 16)
        }),
        case("an event on a destroyed stream", "has been destroyed", |d: &D| {
            let (stream, event) = (d.create_stream()?, d.event_create()?);
            d.abandon_stream(stream)?;
            d.event_record(event, stream)
        }),
        case("a wait on a destroyed stream", "has been destroyed", |d: &D| {
            let (stream, event) = (d.create_stream()?, d.event_create()?);
            d.destroy_stream(stream)?;
            d.stream_wait(stream, event)
        }),
        case("query of a destroyed event", "was destroyed", |d: &D| {
            let event = d.event_create()?;
            d.event_destroy(event)?;
            d.event_query(event).map(drop)
        }),
        case("destroying an event twice", "was destroyed", |d: &D| {
            let event = recorded(d, StreamId::DEFAULT);
            d.event_destroy(event)?;
            d.event_destroy(event)
        }),
        case("a copy beyond memory of the host", "of the host's memory", |d: &D| {
            let mapped = Mapped::new(d, 1, 1);
            let memory = d.host_alloc(100)?;
            d.copy_out(StreamId::DEFAULT, memory, 90, mapped.addr, 16)
        }),
        case("a copy from memory of the host that was freed", "was freed", |d: &D| {
            let mapped = Mapped::new(d, 1, 1);
            let memory = d.host_alloc(100)?;
            d.host_free(memory)?;
            d.copy_in(StreamId::DEFAULT, mapped.addr, memory, 0, 16)
        }),
        case("memory of the host freed twice", "was freed", |d: &D| {
            let memory = d.host_alloc(100)?;
            d.host_free(memory)?;
            d.host_free(memory)
        }),
        case("a read beyond memory of the host", "of the host's memory", |d: &D| {
            let memory = d.host_alloc(100)?;
            d.host_read(memory, 90, 16, &mut |_| ())
        }),
        case("a write beyond memory of the host", "of the host's memory", |d: &D| {
            let memory = d.host_alloc(100)?;
            d.host_write(memory, 90, 16, &mut |_| ())
        }),
        case("a copy to unmapped addresses", "not mapped", |d: &D| {
            let mapped = Mapped::new(d, 1, 1);
            let memory = d.host_alloc(100)?;
            d.copy_in(StreamId::DEFAULT, mapped.addr.offset(mapped.bytes), memory, 0, 16)
        }),
    ]
}
