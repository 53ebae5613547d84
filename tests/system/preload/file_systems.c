/* Extended attributes, statfs(2), pathconf(3), file handles and watches. The argument is a virtual
   directory: a real file system answers some of these calls in another way. */
#include "cases.h"
#include <sys/inotify.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

static void cases(void) {
  char text[200];
  put("f", "x");
  symlink("missing", "link");
  int fd = open("f", O_RDWR), dir = open(".", O_RDONLY);
  SHOW(getxattr("f", "user.a", text, sizeof text));
  SHOW(lgetxattr("link", "security.selinux", text, sizeof text));
  SHOW(fgetxattr(fd, "user.a", text, sizeof text));
  SHOW(fgetxattr(dir, "user.a", text, sizeof text));
  SHOW(listxattr("f", text, sizeof text));
  SHOW(llistxattr("link", text, sizeof text));
  SHOW(flistxattr(fd, text, sizeof text));
  SHOW(setxattr("f", "user.a", "v", 1, 0));
  SHOW(lsetxattr("f", "user.a", "v", 1, 0));
  SHOW(fsetxattr(fd, "user.a", "v", 1, 0));
  SHOW(removexattr("f", "user.a"));
  SHOW(lremovexattr("f", "user.a"));
  SHOW(fremovexattr(fd, "user.a"));
  SHOW(getxattr("missing", "user.a", text, sizeof text));
  SHOW(getxattr("link", "user.a", text, sizeof text));
  struct statfs space;
  SHOW(statfs("f", &space));
  SHOW(space.f_bsize);
  SHOW(space.f_blocks > 0);
  SHOW(space.f_namelen);
  SHOW(fstatfs(fd, &space));
  SHOW(fstatfs(dir, &space));
  SHOW(statfs("missing", &space));
  struct statvfs portable;
  SHOW(statvfs(".", &portable));
  SHOW(portable.f_frsize);
  SHOW(portable.f_blocks > 0 && portable.f_bavail <= portable.f_bfree);
  SHOW(fstatvfs(fd, &portable));
  SHOW(portable.f_namemax);
  SHOW(pathconf("f", _PC_NAME_MAX));
  SHOW(pathconf(".", _PC_PATH_MAX));
  SHOW(fpathconf(fd, _PC_PIPE_BUF));
  SHOW(fpathconf(fd, 9999));
  SHOW(pathconf("missing", _PC_NAME_MAX));
  struct {
    struct file_handle handle;
    char space[128];
  } named = {.handle.handle_bytes = 128};
  int mount;
  SHOW(name_to_handle_at(AT_FDCWD, "f", &named.handle, &mount, 0));
  int watches = inotify_init();
  SHOW(inotify_add_watch(watches, "f", IN_MODIFY));
  SHOW(inotify_add_watch(watches, "missing", IN_MODIFY));
  SHOW(inotify_add_watch(watches, "/", IN_MODIFY));
  SHOW(close(fd) + close(dir) + close(watches));
}
