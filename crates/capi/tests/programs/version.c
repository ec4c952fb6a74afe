/* The version of the header against that of the library. */
#include <gapless.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    int is_one = GAPLESS_VERSION == gapless_version_number() && strcmp(GAPLESS_VERSION_STRING, gapless_version()) == 0;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", GAPLESS_VERSION_MAJOR, GAPLESS_VERSION_MINOR, GAPLESS_VERSION_PATCH);
    is_one = is_one && strcmp(text, GAPLESS_VERSION_STRING) == 0 && gapless_version_number() / 100 == GAPLESS_VERSION / 100;
    printf("%s: %d, %s: %d\n", GAPLESS_VERSION_STRING, GAPLESS_VERSION, gapless_version(), (int)gapless_version_number());
    return !is_one;
}
