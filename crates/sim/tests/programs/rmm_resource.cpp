/* Compiled only: gapless's memory resources where RMM 26.10 takes one. */
#include <gapless.hpp>
#include <gapless/rmm.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>
#include <type_traits>

template <typename Resource>
constexpr bool is_a_resource_of_device_memory() {
    static_assert(cuda::mr::resource_with<Resource, cuda::mr::device_accessible>);
    static_assert(cuda::mr::synchronous_resource_with<Resource, cuda::mr::device_accessible>);
    static_assert(!cuda::has_property<Resource, cuda::mr::host_accessible>);
    static_assert(std::is_constructible_v<rmm::device_async_resource_ref, Resource &>);
    return std::is_constructible_v<cuda::mr::any_resource<cuda::mr::device_accessible>, Resource>;
}

using Resource = gapless::memory_resource;

static_assert(is_a_resource_of_device_memory<Resource>() && is_a_resource_of_device_memory<gapless::rmm_memory_resource>());

rmm::device_uvector<int> use(cuda::stream_ref stream) {
    Resource resource(0);
    rmm::mr::set_current_device_resource(resource);
    rmm::mr::pool_memory_resource pool(resource, 1 << 20);
    rmm::mr::statistics_resource_adaptor counted(resource);
    rmm::mr::failure_callback_resource_adaptor<std::bad_alloc> again(resource, nullptr, nullptr);
    rmm::mr::failure_callback_resource_adaptor<> spilling(gapless::rmm_memory_resource(0), nullptr, nullptr);
    rmm::device_buffer buffer(1 << 20, stream, pool), other(1 << 20, stream, spilling);
    return rmm::device_uvector<int>(1 << 20, stream, again);
}
