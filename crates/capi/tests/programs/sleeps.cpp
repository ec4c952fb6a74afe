/* What sleeps, and what wakes with its bytes. The argument is a directory for backups in files. */
#include "streams.hpp"

#include <chrono>
#include <string>
#include <type_traits>
#include <vector>

using gapless::backup;
using gapless::buffer;
using gapless::device;
using gapless::tag_scope;

static_assert(!std::is_copy_constructible_v<tag_scope> && !std::is_move_constructible_v<tag_scope>);

static const device DEVICE(0);

using Bytes = std::vector<unsigned char>;

static Bytes read(const buffer &block) {
    Bytes bytes(block.size());
    expect(cuMemcpyDtoH_v2(bytes.data(), reinterpret_cast<std::uintptr_t>(block.data()), bytes.size()) == 0, "a copy");
    return bytes;
}

static buffer filled(unsigned char byte, std::size_t bytes) {
    buffer block(DEVICE, bytes, nullptr);
    fill(block.data(), byte, bytes, nullptr);
    expect(cuStreamSynchronize(nullptr) == 0, "a wait");
    return block;
}

/* A pool, and an allocation in it. */
struct Pool {
    gapless_torch_pool name;
    void *block = nullptr;

    explicit Pool(std::uint64_t number) : name{0, number} { gapless::check(gapless_torch_use_pool(0, name)); }
    void declare(const char *tag) { gapless::check(gapless_torch_declare_pool(0, name, GAPLESS_POOL_ORDINARY, tag)); }
    void allocate(std::size_t bytes) { gapless::check(gapless_torch_alloc(0, bytes, nullptr, &name, &block)); }
    void free() { DEVICE.deallocate(block); }
};

static void bytes_survive_a_sleep() {
    const buffer block = filled(7, 5 * MIB);
    for (backup kind : {backup::pinned, backup::pageable, backup::file}) {
        const gapless_slept slept = DEVICE.sleep(kind);
        expect(slept.live_bytes == 5 * MIB && slept.asleep_bytes == 6 * MIB, "pages fall asleep");
        expect(slept.copied_bytes == 5 * MIB && slept.released_bytes >= 6 * MIB, "and live bytes are copied");
        expect(DEVICE.stats().reserved_bytes == 0, "nothing is held");
        const gapless::sleeping asleep = DEVICE.asleep();
        expect(asleep.live_bytes == 5 * MIB && asleep.asleep_bytes == 6 * MIB, "that much is asleep");
        if (kind == backup::file) {
            auto shown = [&] { (void)DEVICE.backup_of(block.data(), MIB); };
            expect_thrown<gapless::error>(GAPLESS_ERROR_NOT_FOUND, shown, "what is in a file is not shown");
        } else {
            const auto *const host = static_cast<const unsigned char *>(DEVICE.backup_of(block.data(), block.size()));
            expect(host != nullptr && Bytes(host, host + block.size()) == Bytes(5 * MIB, 7), "the host has the bytes");
        }
        expect(DEVICE.wake() == 6 * MIB && DEVICE.wake() == 0, "it wakes once");
        expect(read(block) == Bytes(5 * MIB, 7), "with its bytes");
        expect(DEVICE.backup_of(block.data(), MIB) == nullptr, "of which the host has none any more");
    }
    const gapless_slept slept = DEVICE.sleep(backup::discard);
    expect(slept.live_bytes == 5 * MIB && slept.copied_bytes == 0, "what is discarded is not copied");
    expect(DEVICE.wake() == 6 * MIB, "and wakes");
    fill(block.data(), 9, block.size(), nullptr);
    expect(read(block) == Bytes(5 * MIB, 9), "at its address");
}

static void backups_can_be_retained() {
    buffer block = filled(1, 2 * MIB);
    expect(DEVICE.sleep().copied_bytes == 2 * MIB, "without a word, bytes are kept");
    gapless::wake_options options;
    options.retain_backups = true;
    expect(DEVICE.wake(options) == 2 * MIB, "it wakes");
    const auto *const host = static_cast<const unsigned char *>(DEVICE.backup_of(block.data(), block.size()));
    fill(block.data(), 2, block.size(), nullptr);
    expect(cuStreamSynchronize(nullptr) == 0, "a wait");
    expect(host != nullptr && Bytes(host, host + 2 * MIB) == Bytes(2 * MIB, 1), "the backup is that of the sleep");
    block.free();
}

static void tags_sleep_apart_and_together() {
    Pool weights(1), cache(2);
    weights.declare("weights");
    cache.declare("cache");
    const buffer own = filled(3, 2 * MIB);
    weights.allocate(4 * MIB);
    cache.allocate(6 * MIB);
    fill(weights.block, 4, 4 * MIB, nullptr);
    expect(DEVICE.sleep("nothing").asleep_bytes == 0, "a tag that no pool has is nothing");
    expect(DEVICE.sleep("weights").copied_bytes == 4 * MIB, "one sleeps");
    expect(DEVICE.asleep("weights").live_bytes == 4 * MIB && DEVICE.asleep("cache").live_bytes == 0, "and not the other");
    expect(DEVICE.wake("cache") == 0 && DEVICE.wake("weights") == 4 * MIB, "one wakes");
    const gapless_slept slept = DEVICE.sleep_tags({{"weights", backup::pinned}, {"cache", backup::discard}});
    expect(slept.asleep_bytes == 10 * MIB && slept.copied_bytes == 4 * MIB, "each with a backup of its own");
    expect(read(own) == Bytes(2 * MIB, 3), "what has no tag is awake");
    expect(DEVICE.wake_tags({}) == 0 && DEVICE.wake_tags({"weights", "cache"}) == 10 * MIB, "both wake");
    std::vector<unsigned char> bytes(4 * MIB);
    expect(cuMemcpyDtoH_v2(bytes.data(), reinterpret_cast<std::uintptr_t>(weights.block), bytes.size()) == 0, "a copy");
    expect(bytes == Bytes(4 * MIB, 4), "with the bytes");
    const gapless_slept all = DEVICE.sleep_tags({{"cache", backup::discard}, {nullptr, backup::pageable}});
    expect(all.asleep_bytes == 12 * MIB && all.copied_bytes == 6 * MIB, "and the rest has one");
    expect(DEVICE.wake() == 12 * MIB, "all wakes");
    weights.free();
    cache.free();
}

static void too_little_memory_is_a_bad_alloc() {
    buffer block = filled(5, 40 * MIB);
    DEVICE.sleep();
    buffer other(DEVICE, 40 * MIB, nullptr);
    const auto begin = std::chrono::steady_clock::now();
    bool caught = false;
    try {
        DEVICE.wake({std::chrono::milliseconds(30)});
    } catch (const std::bad_alloc &error) {
        caught = std::string(error.what()).find("40 MiB without a tag are asleep and need 40 MiB.") != std::string::npos;
    }
    expect(caught, "with a text that says what is asleep");
    expect(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(30), "after the time that it may take");
    auto at_once = [] { DEVICE.wake({std::chrono::milliseconds(-1)}); };
    expect_thrown<gapless::out_of_memory>(GAPLESS_ERROR_OUT_OF_MEMORY, at_once, "a time that is over is none");
    expect(DEVICE.asleep().live_bytes == 40 * MIB, "all is asleep as before");
    other.free();
    expect(DEVICE.wake() == 40 * MIB && read(block) == Bytes(40 * MIB, 5), "and wakes when there is memory");
}

static void a_scope_gives_its_tag_to_graphs() {
    {
        const tag_scope outer("outer");
        Pool first(3);
        {
            const tag_scope inner("inner");
            Pool second(4);
            second.allocate(2 * MIB);
        }
        Pool third(5);
        first.allocate(2 * MIB);
        third.allocate(4 * MIB);
    }
    Pool fourth(6);
    fourth.allocate(8 * MIB);
    expect(DEVICE.sleep("inner").asleep_bytes == 2 * MIB, "the last one counts");
    expect(DEVICE.sleep("outer").asleep_bytes == 6 * MIB, "then the one before");
    expect(DEVICE.sleep().asleep_bytes == 8 * MIB, "and none at the end");
    expect(DEVICE.wake() == 16 * MIB, "all wakes");
    expect_thrown<gapless::error>(GAPLESS_ERROR_INVALID_ARGUMENT, [] { tag_scope empty(""); }, "no tag is empty");
    expect(gapless_tag_pop() == GAPLESS_ERROR_NOT_FOUND, "and what threw began nothing");
    const tag_scope ended_elsewhere("lost");
    gapless_tag_pop();
}

int main(int count, char **arguments) {
    gapless::check(gapless_configure((std::string("budget:64MiB,backups:") + (count > 1 ? arguments[1] : "")).c_str()));
    open_device();
    bytes_survive_a_sleep();
    backups_can_be_retained();
    tags_sleep_apart_and_together();
    too_little_memory_is_a_bad_alloc();
    auto unknown = [] { DEVICE.sleep(static_cast<backup>(9)); };
    expect_thrown<gapless::error>(GAPLESS_ERROR_INVALID_ARGUMENT, unknown, "a backup of no kind");
    a_scope_gives_its_tag_to_graphs();
    return ended();
}
