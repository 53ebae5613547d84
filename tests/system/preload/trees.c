/* Calls on an indexed tree with the directory `d`, the file `d/one` and more files below. */
#include "cases.h"
#include <ftw.h>
#include <fts.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

static long sum, count;

static int visit(const char *path, const struct stat *found, int type, struct FTW *at) {
  count++;
  sum += (type == FTW_F ? found->st_size : 0) + 31 * type + at->level + strlen(path);
  return 0;
}

static void flags(void) {
  static const int flags[] = {0, O_NONBLOCK, O_NOATIME, O_APPEND | O_NONBLOCK};
  for (int i = 0; i < 4; i++) {
    int fd = open("d/one", O_RDONLY | flags[i]);
    SHOW(fcntl(fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK | O_NOATIME | O_APPEND));
    SHOW(fcntl(fd, F_SETFL, O_APPEND));
    SHOW(fcntl(fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK | O_NOATIME | O_APPEND));
    SHOW(close(fd));
  }
}

static void cases(void) {
  flags();
  SHOW(nftw(".", visit, 10, FTW_PHYS));
  SHOW(count * 100000 + sum);
  glob_t found = {0};
  SHOW(glob("*/*", 0, NULL, &found));
  for (size_t i = 0; i < found.gl_pathc; i++) SHOW_TEXT(found.gl_pathv[i]);
  struct dirent **list;
  SHOW(scandir("d", &list, NULL, alphasort));
  char *paths[] = {".", NULL};
  FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
  int entries = 0;
  while (fts_read(tree) != NULL) entries++;
  SHOW(entries);
  SHOW(fts_close(tree));
  char text[50] = "";
  FILE *f = fopen("d/one", "r");
  SHOW(fgets(text, sizeof text, f) != NULL);
  SHOW_TEXT(text);
  SHOW(fclose(f));
  f = fopen("/dev/null", "r");
  SHOW(freopen("d/one", "r", f) == f);
  SHOW(fgetc(f));
  SHOW(fclose(f));
  int fd = open("d/link", O_RDONLY);
  char *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
  SHOW(mapped[0]);
  struct statfs space;
  SHOW(statfs(".", &space));
  SHOW(space.f_type);
  SHOW(fstatfs(fd, &space));
  struct statvfs portable;
  SHOW(statvfs("d", &portable));
  SHOW(portable.f_bsize);
  SHOW(pathconf("d", _PC_NAME_MAX));
  if (getenv("QUELL_VIEW") != NULL) {
    char file[] = "XXXXXX", dir[] = "d/XXXXXX";
    SHOW(fopen("d/one", "w") == NULL ? -1 : 0);
    SHOW(setxattr("d/one", "user.k", "x", 1, 0));
    SHOW(mkstemp(file));
    SHOW(mkdtemp(dir) == NULL ? -1 : 0);
  }
}
