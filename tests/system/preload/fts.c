/* fts(3). */
#include "cases.h"
#include <fts.h>

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

static void walk(const char *title, int options, int instruct) {
  char *paths[] = {"tree", "tree/one.c", "missing", NULL};
  FTS *tree = fts_open(paths, options, by_name);
  fprintf(results, "%s: %d\n", title, tree != NULL);
  FTSENT *entry;
  while ((entry = fts_read(tree)) != NULL) {
    fprintf(results, "  %d level %d %s (%s) length %d %d error %d size %ld\n", entry->fts_info, entry->fts_level,
            entry->fts_path, entry->fts_name, entry->fts_pathlen, entry->fts_namelen, entry->fts_errno,
            entry->fts_info == FTS_F ? (long)entry->fts_statp->st_size : 0);
    if (instruct && strcmp(entry->fts_name, "a") == 0 && entry->fts_info == FTS_D) {
      for (FTSENT *child = fts_children(tree, 0); child != NULL; child = child->fts_link) {
        fprintf(results, "    child %s %d\n", child->fts_name, child->fts_info);
        if (strcmp(child->fts_name, "three.c") == 0) fts_set(tree, child, FTS_SKIP);
      }
    }
    if (instruct && strcmp(entry->fts_name, "empty") == 0) fts_set(tree, entry, FTS_SKIP);
    if (instruct && entry->fts_info == FTS_SL) fts_set(tree, entry, FTS_FOLLOW);
    if (instruct && strcmp(entry->fts_name, "skipped") == 0) fts_set(tree, entry, FTS_SKIP);
  }
  SHOW(errno);
  SHOW(fts_close(tree));
}

static void cases(void) {
  mkdir("tree", 0755);
  mkdir("tree/a", 0755);
  mkdir("tree/a/deep", 0755);
  mkdir("tree/empty", 0755);
  mkdir("tree/skipped", 0755);
  put("tree/one.c", "1");
  put("tree/a/three.c", "333");
  put("tree/a/deep/four.h", "4444");
  put("tree/skipped/file", "");
  symlink("one.c", "tree/file");
  symlink("../a", "tree/a/cycle");
  symlink("missing", "tree/dangling");
  walk("physical", FTS_PHYSICAL | FTS_NOCHDIR, 0);
  walk("physical with instructions", FTS_PHYSICAL | FTS_NOCHDIR, 1);
  walk("logical", FTS_LOGICAL | FTS_NOCHDIR, 0);
  walk("with changes of the directory", FTS_PHYSICAL, 0);
  walk("on one device", FTS_PHYSICAL | FTS_XDEV | FTS_NOCHDIR, 0);
  char *paths[] = {"tree", NULL};
  SHOW(fts_open(paths, 0, NULL) == NULL ? -1 : 0);
  FTS *tree = fts_open(paths, FTS_PHYSICAL, NULL);
  SHOW(strcmp(fts_read(tree)->fts_path, "tree"));
  SHOW(fts_read(tree) != NULL);
  SHOW(fts_close(tree));
}
