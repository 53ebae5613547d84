/* Streams of wide characters. */
#include "cases.h"
#include <locale.h>
#include <wchar.h>

static void writes(void) {
  FILE *f = fopen("w", "w");
  SHOW(fwide(f, 0));
  SHOW(fputwc(L'\u00e4', f));
  SHOW(fwide(f, 0) > 0);
  SHOW(fwide(f, -1) > 0);
  SHOW(putwc(L'b', f));
  SHOW(putwc_unlocked(L'\u4e2d', f));
  SHOW(fputws(L"text \u20ac and \U0001f600\n", f) >= 0);
  SHOW(fputws(L"", f) >= 0);
  SHOW(fwprintf(f, L"%d %ls %s %lc %.3f %d %d %d %d %d\n", 1, L"w\u00efde", "narrow \xc3\xa9", L'\u00df', 2.5, 2, 3, 4, 5, 6));
  SHOW(ferror(f) != 0);
  SHOW(fclose(f));
  SHOW_TEXT(content("w"));
  f = fopen("w2", "w");
  for (int i = 0; i < 20000; i++) fwprintf(f, L"%d \u00e9\n", i);
  SHOW(ftell(f));
  SHOW(fclose(f));
}

static void reads(void) {
  wchar_t text[100];
  FILE *f = fopen("w", "r");
  SHOW(fwide(f, 1) > 0);
  SHOW(fgetwc(f));
  SHOW(getwc(f));
  SHOW(ungetwc(L'\u00fc', f));
  SHOW(fgetwc(f));
  SHOW(fgetwc_unlocked(f));
  SHOW(fgetws(text, 100, f) == text);
  SHOW(wcslen(text));
  SHOW(text[5]);
  SHOW(fgetws(text, 5, f) == text);
  SHOW(wcslen(text));
  SHOW(fgetws(text, 100, f) == text);
  SHOW(wcslen(text));
  SHOW(fgetws(text, 100, f) == NULL);
  SHOW(feof(f) != 0);
  SHOW(ferror(f));
  SHOW((int)fgetwc(f) == (int)WEOF);
  SHOW(fclose(f));
  put("bad", "a\xff" "b");
  f = fopen("bad", "r");
  SHOW(fgetwc(f));
  SHOW((int)fgetwc(f));
  SHOW(ferror(f) != 0);
  SHOW(fclose(f));
  f = fopen("w2", "r");
  long sum = 0, lines = 0;
  for (wint_t c; (c = fgetwc(f)) != WEOF;) sum += c, lines += c == L'\n';
  SHOW(sum);
  SHOW(lines);
  SHOW(fclose(f));
  f = fopen("w", "r");
  SHOW(fputwc(L'x', f) == WEOF);
  SHOW(ferror(f) != 0);
  SHOW(fclose(f));
}

static void standard(void) {
  wchar_t text[100];
  SHOW(freopen("out", "w", stdout) != NULL);
  SHOW(fwide(stdout, 1) > 0);
  SHOW(wprintf(L"number %d \u20ac\n", 7));
  SHOW(putwchar(L'\u00f6'));
  SHOW(fflush(stdout));
  SHOW_TEXT(content("out"));
  SHOW(freopen("out", "r", stdin) != NULL);
  SHOW(getwchar());
  SHOW(fgetws(text, 100, stdin) == text);
  SHOW(wcslen(text));
  SHOW(freopen("/dev/null", "w", stdout) != NULL);
}

/* The formatted input of wide characters is refused on virtual files. */
static void formatted(void) {
  int number = 0;
  put("n", "42");
  FILE *f = fopen("n", "r");
  errno = 0;
  int found = fwscanf(f, L"%d", &number), error = errno;
  SHOW((found == 1 && number == 42) || (found == EOF && error == ENOTSUP));
  SHOW(fclose(f));
}

static void cases(void) {
  SHOW(setlocale(LC_ALL, "C.UTF-8") != NULL);
  writes();
  reads();
  standard();
  formatted();
}
