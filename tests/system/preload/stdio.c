/* Streams: fopen(3), freopen(3), fdopen(3), tmpfile(3), popen(3) and mkstemp(3). */
#include "cases.h"

static void modes(void) {
  char text[100] = "";
  FILE *f = fopen("a", "wx");
  SHOW(f != NULL);
  SHOW(fprintf(f, "line %d\nsecond\n", 1));
  SHOW(ftell(f));
  SHOW(fclose(f));
  SHOW_TEXT(content("a"));
  SHOW(fopen("a", "wx") == NULL ? -1 : 0);
  SHOW(fopen("missing", "r") == NULL ? -1 : 0);
  SHOW(fopen("missing/x", "w") == NULL ? -1 : 0);
  SHOW(fopen("a", "q") == NULL ? -1 : 0);
  f = fopen("a", "r+");
  SHOW(fgets(text, sizeof text, f) != NULL);
  SHOW_TEXT(text);
  SHOW(ungetc('X', f));
  SHOW(fgetc(f));
  SHOW(fseek(f, 0, SEEK_CUR));
  SHOW(fputs("SEC", f));
  SHOW(fseeko(f, 0, SEEK_SET));
  SHOW(fread(text, 1, sizeof text, f));
  SHOW(feof(f) != 0);
  SHOW(fclose(f));
  SHOW_TEXT(content("a"));
  f = fopen("a", "a");
  SHOW(ftell(f));
  SHOW(fputs("appended\n", f));
  SHOW(fclose(f));
  f = fopen("a", "a+e");
  SHOW(fcntl(fileno(f), F_GETFD));
  SHOW(fgetc(f));
  SHOW(fseek(f, 0, SEEK_SET));
  SHOW(fputs("again\n", f));
  SHOW(fflush(f));
  SHOW(ftell(f));
  SHOW(fseek(f, 0, SEEK_SET));
  SHOW(fgetc(f));
  SHOW(fclose(f));
  SHOW_TEXT(content("a"));
  f = fopen("a", "r");
  SHOW(fputc('x', f));
  SHOW(ferror(f) != 0);
  SHOW(fclose(f));
  f = fopen("a", "w");
  SHOW(fgetc(f));
  SHOW(fclose(f));
  SHOW_TEXT(content("a"));
}

static void descriptors(void) {
  put("d", "0123456789");
  int fd = open("d", O_RDONLY);
  SHOW(fdopen(fd, "w") == NULL ? -1 : 0);
  FILE *f = fdopen(fd, "r");
  SHOW(f != NULL && fileno(f) == fd);
  SHOW(fgetc(f));
  SHOW(fclose(f));
  SHOW(close(fd));
  fd = open("d", O_RDWR);
  f = fdopen(fd, "a");
  SHOW((fcntl(fd, F_GETFL) & O_APPEND) != 0);
  SHOW(fputs("end", f));
  SHOW(fclose(f));
  SHOW_TEXT(content("d"));
  SHOW(fdopen(fd, "r") == NULL ? -1 : 0);
}

static void large(void) {
  FILE *f = fopen("large", "w+");
  SHOW(fseeko(f, 3L << 30, SEEK_SET));
  SHOW(fputs("far", f));
  SHOW(ftello(f));
  SHOW(fseeko(f, -3, SEEK_END));
  SHOW(fgetc(f));
  SHOW(fclose(f));
  struct stat found;
  SHOW(stat("large", &found));
  SHOW(found.st_size);
  SHOW(unlink("large")); // its holes take seconds to read
  f = fopen("many", "w");
  for (int i = 0; i < 100000; i++) fprintf(f, "%d\n", i);
  SHOW(fclose(f));
  f = fopen("many", "r");
  long sum = 0, value;
  while (fscanf(f, "%ld", &value) == 1) sum += value;
  SHOW(sum);
  SHOW(fclose(f));
}

static void reopened(void) {
  put("one", "first\n");
  put("two", "second\n");
  char text[100] = "";
  FILE *f = fopen("one", "r");
  SHOW(fgetc(f));
  f = freopen("two", "r", f);
  SHOW(fgets(text, sizeof text, f) != NULL);
  SHOW_TEXT(text);
  f = freopen("three", "w", f);
  SHOW(fputs("written\n", f));
  SHOW(fgetc(f));
  f = freopen(NULL, "r", f);
  SHOW(f != NULL);
  SHOW(fgets(text, sizeof text, f) != NULL);
  SHOW_TEXT(text);
  SHOW(freopen("/dev/null", "r", f) != NULL);
  SHOW(fgetc(f));
  SHOW(fclose(f));
  SHOW(freopen("out", "w", stdout) != NULL);
  SHOW(printf("to %s\n", "standard output"));
  SHOW(fflush(stdout));
  SHOW_TEXT(content("out"));
  SHOW(freopen("two", "r", stdin) != NULL);
  SHOW(getchar());
  SHOW(scanf("%99s", text));
  SHOW_TEXT(text);
  SHOW(freopen("out", "a", stdout) != NULL);
  SHOW(puts("appended"));
  SHOW(freopen("/dev/null", "w", stdout) != NULL);
  SHOW_TEXT(content("out"));
}

static void temporary(void) {
  struct stat found;
  char name[] = "file.XXXXXX", suffixed[] = "f.XXXXXX.c", dir[] = "dir.XXXXXX", wrong[] = "x.XXXXX";
  int fd = mkstemp(name);
  SHOW(fd >= 0 && strncmp(name, "file.", 5) == 0 && strcmp(name, "file.XXXXXX") != 0);
  SHOW(fstat(fd, &found));
  SHOW(found.st_mode);
  SHOW(write(fd, "x", 1));
  SHOW(close(fd));
  SHOW(stat(name, &found));
  SHOW(found.st_size);
  fd = mkostemps(suffixed, 2, O_CLOEXEC | O_APPEND);
  SHOW(fd >= 0 && strcmp(suffixed + 8, ".c") == 0);
  SHOW(fcntl(fd, F_GETFD));
  SHOW(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
  SHOW(close(fd));
  SHOW(mkdtemp(dir) != NULL);
  SHOW(stat(dir, &found));
  SHOW(found.st_mode);
  SHOW(mkstemp(wrong));
  char missing[] = "missing/XXXXXX";
  SHOW(mkstemp(missing));
  char here[PATH_MAX];
  SHOW(getcwd(here, sizeof here) != NULL);
  setenv("TMPDIR", here, 1);
  char *chosen = tempnam(NULL, "ab");
  SHOW(chosen != NULL && strncmp(chosen, here, strlen(here)) == 0 && access(chosen, F_OK) == -1);
  free(chosen);
  // Their names are random, so trees with them cannot be compared.
  SHOW(unlink(name));
  SHOW(unlink(suffixed));
  SHOW(rmdir(dir));
}

static void commands(void) {
  FILE *f = fopen("c", "w");
  fputs("from the stream\n", f);
  fflush(f);
  FILE *p = popen("cat c; echo more > c2; exit 3", "r");
  char text[100] = "";
  SHOW(fgets(text, sizeof text, p) != NULL);
  SHOW_TEXT(text);
  SHOW(WEXITSTATUS(pclose(p)));
  SHOW_TEXT(content("c2"));
  SHOW(fclose(f));
}

static void cases(void) {
  modes();
  descriptors();
  large();
  reopened();
  temporary();
  commands();
}
