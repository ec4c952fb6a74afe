/* Compiled only: gapless's memory resource where RMM 26.10 takes one. */
#include <gapless.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>
#include <type_traits>

using Resource = gapless::memory_resource;

static_assert(cuda::mr::resource_with<Resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::synchronous_resource_with<Resource, cuda::mr::device_accessible>);
static_assert(!cuda::has_property<Resource, cuda::mr::host_accessible>);
static_assert(std::is_constructible_v<rmm::device_async_resource_ref, Resource &>);
static_assert(std::is_constructible_v<cuda::mr::any_resource<cuda::mr::device_accessible>, Resource>);

rmm::device_uvector<int> use(cuda::stream_ref stream) {
    Resource resource(0);
    rmm::mr::set_current_device_resource(resource);
    rmm::mr::pool_memory_resource pool(resource, 1 << 20);
    rmm::mr::statistics_resource_adaptor counted(resource);
    rmm::mr::failure_callback_resource_adaptor<std::bad_alloc> again(resource, nullptr, nullptr);
    rmm::device_buffer buffer(1 << 20, stream, pool);
    return rmm::device_uvector<int>(1 << 20, stream, again);
}
