/* Functions that read whole directories. Entries of a directory have no order, so they are
   collected and sorted. */
#include "cases.h"
#include <ftw.h>
#include <glob.h>
#include <sys/syscall.h>

static char *lines[1000];
static int count, stop_at = -1, answer;

static void add(const char *format, const char *path, long a, long b) {
  char line[PATH_MAX + 100];
  snprintf(line, sizeof line, format, path, a, b);
  lines[count++] = strdup(line);
}

static int compare(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }

static void show(const char *title) {
  qsort(lines, count, sizeof *lines, compare);
  fprintf(results, "%s\n", title);
  for (int i = 0; i < count; i++) fprintf(results, "  %s\n", lines[i]), free(lines[i]);
  count = 0;
}

static int old_visit(const char *path, const struct stat *found, int type) {
  add("%s type %ld size %ld", path, type, type != FTW_NS && S_ISREG(found->st_mode) ? found->st_size : 0);
  return 0;
}

static int visit(const char *path, const struct stat *found, int type, struct FTW *at) {
  char text[PATH_MAX + 50];
  snprintf(text, sizeof text, "%s (%s) type %d size %ld", path, path + at->base, type,
           type != FTW_NS && S_ISREG(found->st_mode) ? (long)found->st_size : 0);
  add("%s level %ld", text, at->level, 0);
  return count == stop_at ? 17 : answer;
}

static int visit_here(const char *path, const struct stat *found, int type, struct FTW *at) {
  (void)found;
  /* The working directory has the last name of the path. */
  add("%s type %ld found %ld", path, type, type == FTW_DP || access(path + at->base, F_OK) == 0);
  return 0;
}

static int skip_directories(const char *path, const struct stat *found, int type, struct FTW *at) {
  visit(path, found, type, at);
  return type == FTW_D && at->level > 0 ? FTW_SKIP_SUBTREE : FTW_CONTINUE;
}

static int no_dots(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static int report(const char *path, int number) {
  fprintf(results, "glob: %s %s\n", path, strerrorname_np(number));
  return 0;
}

static void globbed(const char *pattern, int flags, glob_t *found) {
  int result = glob(pattern, flags, report, found);
  fprintf(results, "glob %s = %d\n", pattern, result);
  for (size_t i = 0; result == 0 && i < found->gl_pathc; i++) fprintf(results, "  %s\n", found->gl_pathv[i]);
}

static void entries(int fd) {
  char buffer[300];
  long length;
  while ((length = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0) {
    for (long at = 0; at < length;) {
      struct dirent64 *entry = (struct dirent64 *)(buffer + at);
      add("%s type %ld", entry->d_name, entry->d_type, 0);
      at += entry->d_reclen;
    }
  }
  SHOW(length);
  show("entries");
}

static void cases(void) {
  mkdir("tree", 0755);
  mkdir("tree/a", 0755);
  mkdir("tree/a/deep", 0755);
  mkdir("tree/empty", 0755);
  mkdir("tree/.hidden", 0755);
  put("tree/one.c", "1");
  put("tree/two.c", "22");
  put("tree/a/three.c", "333");
  put("tree/a/deep/four.h", "4444");
  symlink("one.c", "tree/file");
  symlink("missing", "tree/dangling");

  SHOW(ftw("tree", old_visit, 5));
  show("ftw");
  SHOW(nftw("tree/", visit, 5, FTW_PHYS));
  show("nftw physical");
  SHOW(nftw("./tree", visit, 5, FTW_DEPTH | FTW_MOUNT));
  show("nftw logical, depth first");
  SHOW(nftw("tree", visit_here, 5, FTW_PHYS | FTW_CHDIR));
  show("nftw with changes of the directory");
  SHOW(nftw("tree/a", visit_here, 5, FTW_PHYS | FTW_CHDIR));
  show("nftw with changes of the directory, from below");
  SHOW(access("tree/one.c", F_OK));
  SHOW(nftw("tree", skip_directories, 5, FTW_PHYS | FTW_ACTIONRETVAL));
  show("nftw without subdirectories");
  SHOW(nftw("tree/one.c", visit, 5, 0));
  show("nftw of a file");
  SHOW(nftw("tree/dangling", visit, 5, 0));
  show("nftw of a dangling link");
  SHOW(nftw("missing", visit, 5, 0));
  stop_at = 2;
  SHOW(nftw("tree", visit, 5, FTW_PHYS));
  count = 0;

  symlink("a", "tree/link");
  struct dirent **list;
  int number = scandir("tree", &list, no_dots, alphasort);
  SHOW(number);
  for (int i = 0; i < number; i++) fprintf(results, "  %s %d\n", list[i]->d_name, list[i]->d_type), free(list[i]);
  free(list);
  SHOW(scandir("missing", &list, NULL, NULL));
  SHOW(scandir("tree/one.c", &list, NULL, NULL));
  int dir = open("tree", O_RDONLY | O_DIRECTORY);
  number = scandirat(dir, "a", &list, NULL, versionsort);
  SHOW(number);
  for (int i = 0; i < number; i++) fprintf(results, "  %s\n", list[i]->d_name), free(list[i]);
  free(list);

  glob_t found = {0};
  globbed("tree/*.c", 0, &found);
  globbed("tree/*/*", GLOB_APPEND, &found);
  globfree(&found);
  globbed("tree/{one,two,nine}.c", GLOB_BRACE, &found);
  globfree(&found);
  globbed("tree/*", GLOB_MARK | GLOB_PERIOD, &found);
  globfree(&found);
  globbed("tr*/[a-z]*k", GLOB_ONLYDIR, &found);
  globfree(&found);
  globbed("tree/one.c", 0, &found);
  globfree(&found);
  globbed("none*", 0, &found);
  globbed("none*", GLOB_NOCHECK, &found);
  globfree(&found);

  entries(dir);
  SHOW(lseek(dir, 0, SEEK_SET));
  entries(dir);
  entries(dir);
  int file = open("tree/one.c", O_RDONLY);
  char buffer[300];
  SHOW(syscall(SYS_getdents64, file, buffer, sizeof buffer));
  SHOW(lseek(dir, 0, SEEK_SET));
  SHOW(syscall(SYS_getdents64, dir, buffer, 10));
  SHOW(close(dir) + close(file));
}
