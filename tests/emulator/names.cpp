/*
 * names.cpp -- names of functions, for messages. Also of static ones, as kernels often
 * are, which the dynamic linker does not know: from the symbol table of their file.
 */
#include "emulator.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emul {

namespace {

/* A file in memory. */
struct Image {
  explicit Image(const char *path) {
    struct stat status;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    if (!fstat(file, &status)) {
      size = size_t(status.st_size);
      void *memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
      if (memory != MAP_FAILED) data = static_cast<const char *>(memory);
    }
    close(file);
  }
  ~Image() {
    if (data) munmap(const_cast<char *>(data), size);
  }
  template <typename T>
  const T *at(size_t offset, size_t count = 1) const {
    const bool inside = data && offset <= size && count <= (size - offset) / sizeof(T);
    return inside ? reinterpret_cast<const T *>(data + offset) : nullptr;
  }

  const char *data = nullptr;
  size_t size = 0;
};

bool find_symbol(const Dl_info &info, const void *address, char *text, size_t length) {
  const Image image(info.dli_fname);
  const auto *header = image.at<Elf64_Ehdr>(0);
  if (!header || memcmp(header->e_ident, ELFMAG, SELFMAG)) return false;
  const auto *sections = image.at<Elf64_Shdr>(header->e_shoff, header->e_shnum);
  if (!sections) return false;
  const uint64_t base = header->e_type == ET_EXEC ? 0 : uint64_t(info.dli_fbase);
  const uint64_t value = uint64_t(address) - base;
  for (int i = 0; i < header->e_shnum; i++) {
    if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= header->e_shnum)
      continue;
    const Elf64_Shdr &names = sections[sections[i].sh_link];
    const size_t count = sections[i].sh_size / sizeof(Elf64_Sym);
    const auto *symbols = image.at<Elf64_Sym>(sections[i].sh_offset, count);
    const char *strings = image.at<char>(names.sh_offset, names.sh_size);
    if (!symbols || !strings) return false;
    for (size_t j = 0; j < count; j++) {
      const Elf64_Sym &s = symbols[j];
      if (ELF64_ST_TYPE(s.st_info) != STT_FUNC || s.st_name >= names.sh_size) continue;
      if (value < s.st_value || value >= s.st_value + s.st_size) continue;
      snprintf(text, length, "%s", strings + s.st_name);
      return true;
    }
  }
  return false;
}

}  // namespace

void name_code(const void *address, char *text, size_t length) {
  Dl_info info;
  if (!dladdr(address, &info) || !info.dli_fname) {
    snprintf(text, length, "unknown code");
  } else if (!find_symbol(info, address, text, length)) {
    if (info.dli_sname)
      snprintf(text, length, "%s", info.dli_sname);
    else
      snprintf(text, length, "%s+0x%tx", info.dli_fname,
               static_cast<const char *>(address) - static_cast<char *>(info.dli_fbase));
  }
}

std::string name_of(const void *function) {
  char text[256];
  int status;
  name_code(function, text, sizeof(text));
  char *plain = abi::__cxa_demangle(text, nullptr, nullptr, &status);
  std::string name = status ? text : plain;
  free(plain);
  /* Without parameters; but (anonymous namespace):: is part of a name. */
  return name.substr(0, name.find('(', name.rfind("::") == name.npos ? 0
                                                                     : name.rfind("::")));
}

}  // namespace emul
