// Package calendar finds the day, week, month or year of a time zone that contains an instant. These are the windows of
// rules with a calendar.
//
// The package has no clock and no cache. It loads zones as Go's time package does, from the environment, the system or
// Go's installation; the last resort is a copy of the zone data that this package links, so that a daemon in an image
// without files has zones.
package calendar

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	_ "time/tzdata" // the only zone data in an image without files
)

// Unit is the length of a window.
type Unit uint8

// Units are the days, weeks, months and years of the calendar. Weeks begin on Monday.
const (
	Day Unit = iota + 1
	Week
	Month
	Year
)

// Zone loads an IANA time zone.
func Zone(name string) (*time.Location, error) {
	// Refuse names that Go would load although they are no IANA zones: it reads the empty name as UTC and Local as the
	// machine's zone, and many systems have all zones again in the directories posix and right. The zones in right
	// count leap seconds, which the daemon's clock does not.
	if name == "" || name == "Local" || strings.HasPrefix(name, "posix/") || strings.HasPrefix(name, "right/") {
		return nil, fmt.Errorf("calendar: %q is no IANA time zone", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("calendar: %w", err)
	}
	return zone, nil
}

// Window returns the window of a unit in a zone that contains now, in Unix seconds: its first instant, and the first
// instant of the next window.
//
// A window begins at the first instant whose local date is the window's first day or a later day. Where the clocks skip
// midnight, the window begins after the gap; where midnight comes twice, it begins at the first midnight. An hour that
// the clocks repeat belongs to the window that has already begun, and a date that a zone skipped has no window.
func Window(zone *time.Location, u Unit, now int64) (start, end int64) {
	first := firstDay(u, time.Unix(now, 0).In(zone))
	start, end = begins(zone, first), begins(zone, next(u, first))
	for end <= now { // now is past the end where the clocks went back over midnight, or the zone skipped the date
		first = next(u, first)
		start, end = end, begins(zone, next(u, first))
	}
	return start, end
}

// firstDay returns the first day of the unit that contains a local time, represented as midnight of that date in UTC.
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

// next returns the first day of the unit after the unit that begins at first.
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

// begins returns the first instant at which a zone's local date is the date of day, a midnight in UTC, or a later date.
// It does not use time.Date, which does not promise which of two midnights it returns, nor on which side of a gap it
// ends.
func begins(zone *time.Location, day time.Time) int64 {
	wall := day.Unix()
	// Start two days earlier: no zone is, or ever was, two days ahead of UTC, so the local date at from precedes day.
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

// These are the places where Go looks for zone data, in the order in which it looks.
const (
	FromEnvironment = "$ZONEINFO"
	FromSystem      = "system"
	Embedded        = "embedded"
)

// systemDirs are the directories in which Go looks for zone data on Unix.
var systemDirs = []string{"/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/usr/lib/locale/TZ", "/etc/zoneinfo"}

// Source returns the place from which Go loads a zone: one of FromEnvironment, FromSystem and so on. Go does not report
// the place, so Source looks for the files itself.
func Source(name string) string {
	if dir := os.Getenv("ZONEINFO"); dir != "" {
		// ZONEINFO may name a directory of zones, or a file, which is an archive of zones.
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
