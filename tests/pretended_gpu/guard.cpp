// Lets a CPU build of torch have tensors that say they are on CUDA: a device guard that switches nothing, and hooks that
// say that devices are there. The current device is a number that Python reads and sets.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

DeviceIndex device_count = 1;
thread_local DeviceIndex current_index = 0;

struct Guard : public c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  static Device current() { return Device(DeviceType::CUDA, current_index); }
  static Stream stream() { return Stream(Stream::DEFAULT, current()); }

  Device getDevice() const override { return current(); }
  void setDevice(Device device) const override { current_index = device.index(); }
  void uncheckedSetDevice(Device device) const noexcept override { current_index = device.index(); }
  Device exchangeDevice(Device device) const override {
    const Device before = current();
    current_index = device.index();
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return device_count; }

  Stream getStream(Device) const noexcept override { return stream(); }
  Stream getDefaultStream(Device) const override { return stream(); }
  Stream getNewStream(Device, int) const override { return stream(); }
  Stream exchangeStream(Stream) const noexcept override { return stream(); }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}

  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

}  // namespace

// torch looks for this name.
struct CUDAHooks : public at::CUDAHooksInterface {
  CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return device_count; }
  int getNumGPUs() const override { return device_count; }
  void setCurrentDevice(DeviceIndex index) const override { current_index = index; }
  DeviceIndex getCurrentDevice() const override { return current_index; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const DeviceIndex before = current_index;
    current_index = index;
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

extern "C" {
void set_device_count(int count) { device_count = static_cast<DeviceIndex>(count); }
void set_current_device(int index) { current_index = static_cast<DeviceIndex>(index); }
int get_current_device() { return current_index; }
}
