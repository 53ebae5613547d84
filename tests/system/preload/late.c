/* A library that writes files when the process ends, after the program's own functions. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static FILE *stream;
static int descriptor, formatted;

void begin(void) {
  stream = fopen("stream", "w");
  descriptor = open("descriptor", O_WRONLY | O_CREAT, 0644);
  formatted = open("formatted", O_WRONLY | O_CREAT, 0644);
  fputs("early, ", stream);
  write(descriptor, "early, ", 7);
  dprintf(formatted, "%s, ", "early");
}

__attribute__((destructor)) static void end(void) {
  fputs("late", stream);
  write(descriptor, "late", 4);
  dprintf(formatted, "%s %d %.1f", "late", 1, 2.5);
  fputs("late", fopen("new", "w"));
}
