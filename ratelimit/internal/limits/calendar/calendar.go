// Package calendar finds the day, week, month or year of a time zone that contains an instant: the windows of rules
// with a calendar.
//
// The package has no clock and no cache. Zones come from the places where Go looks for them. The last place is the copy
// that this package links, so that a daemon in an image without files has zones.
package calendar

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	_ "time/tzdata" // the image has no other zone data
)

// Unit is the length of a window.
type Unit uint8

// The units. Weeks begin on Monday.
const (
	Day Unit = iota + 1
	Week
	Month
	Year
)

// Zone loads an IANA time zone.
func Zone(name string) (*time.Location, error) {
	// Go reads the empty name as UTC, and Local as the machine's zone. The directories posix and right contain all
	// zones again; right counts leap seconds, which no other clock here does.
	if name == "" || name == "Local" || strings.HasPrefix(name, "posix/") || strings.HasPrefix(name, "right/") {
		return nil, fmt.Errorf("calendar: %q is no IANA time zone", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("calendar: %w", err)
	}
	return zone, nil
}

// Window returns the window of a unit in a zone that contains now, in Unix seconds: from its first instant to the first
// instant of the next window, exclusive.
//
// A window begins at the first instant whose local date is the window's first day or a later one. Where clocks skip
// midnight, this is later in the night; where midnight comes twice, it is the first of both. An hour that clocks repeat
// belongs to the window that has already begun, and a date that a zone skipped has no window.
func Window(zone *time.Location, u Unit, now int64) (start, end int64) {
	first := firstDay(u, time.Unix(now, 0).In(zone))
	start, end = begins(zone, first), begins(zone, next(u, first))
	for end <= now { // the clocks went back over midnight, or the date was skipped
		first = next(u, first)
		start, end = end, begins(zone, next(u, first))
	}
	return start, end
}

// firstDay returns the first day of the unit that contains a local time, as midnight of that date in UTC.
func firstDay(u Unit, local time.Time) time.Time {
	year, month, day := local.Date()
	switch u {
	case Week:
		day -= (int(local.Weekday()) + 6) % 7
	case Month:
		day = 1
	case Year:
		month, day = time.January, 1
	}
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// next returns the first day of the unit after the one that begins at first.
func next(u Unit, first time.Time) time.Time {
	switch u {
	case Week:
		return first.AddDate(0, 0, 7)
	case Month:
		return first.AddDate(0, 1, 0)
	case Year:
		return first.AddDate(1, 0, 0)
	}
	return first.AddDate(0, 0, 1)
}

// begins returns the first instant whose date in a zone is the date of day, a midnight in UTC, or a later date.
// time.Date does not promise which of two midnights it takes, nor on which side of a gap it ends.
func begins(zone *time.Location, day time.Time) int64 {
	wall := day.Unix()
	// No zone is, or was, two days ahead, so the date at from is an earlier one.
	for from := day.Add(-48 * time.Hour).In(zone); ; {
		_, offset := from.Zone()
		_, end := from.ZoneBounds()
		at := max(from.Unix(), wall-int64(offset))
		if end.IsZero() || at < end.Unix() {
			return at
		}
		from = end
	}
}

// Places that hold zone data, in the order in which Go looks for them.
const (
	FromEnvironment = "$ZONEINFO"
	FromSystem      = "system"
	Embedded        = "embedded"
)

// systemDirs are where Go looks on Unix.
var systemDirs = []string{"/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/usr/lib/locale/TZ", "/etc/zoneinfo"}

// Source says where the data of a zone come from, judging by the files: Go does not say.
func Source(name string) string {
	if dir := os.Getenv("ZONEINFO"); dir != "" {
		// A file is an archive of zones.
		if info, err := os.Stat(dir); err == nil && !info.IsDir() || isFile(filepath.Join(dir, name)) {
			return FromEnvironment
		}
	}
	for _, dir := range systemDirs {
		if isFile(filepath.Join(dir, name)) {
			return FromSystem
		}
	}
	return Embedded
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}
