package calendar_test

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/limits/calendar"
	"gatehouse/shared/chaos"
	"gatehouse/shared/must"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := calendar.Zone(name)
	must.Succeed(t, err)
	return z
}

func TestWindow(t *testing.T) {
	f := func(now int64, u calendar.Unit, name string, wantStart, wantReset int64) {
		t.Helper()
		start, end := calendar.Window(zone(t, name), u, now)
		if start != wantStart || end-now != wantReset {
			t.Errorf("%d, %v, %s: start %d, reset %d, want %d, %d", now, u, name, start, end-now, wantStart, wantReset)
		}
	}
	f(1700000000, calendar.Day, "Europe/Berlin", 1699916400, 2800)      // local midnight, UTC+1
	f(1700004600, calendar.Day, "Europe/Berlin", 1700002800, 84600)     // 23:30 UTC is the next day there
	f(1774778400, calendar.Day, "Europe/Berlin", 1774738800, 43200)     // 23 hours
	f(1792922400, calendar.Day, "Europe/Berlin", 1792879200, 46800)     // 25 hours
	f(1700000000, calendar.Week, "Europe/Berlin", 1699830000, 434800)   // Monday
	f(1700000000, calendar.Month, "Europe/Berlin", 1698793200, 1385200) // with the hour of October's end
	f(1773532800, calendar.Month, "Europe/Berlin", 1772319600, 1461600) // without that of March's
	f(1709208000, calendar.Month, "UTC", 1706745600, 43200)             // 29 February
	f(1714122000, calendar.Day, "Africa/Cairo", 1714082400, 43200)      // begins at 01:00 local
	f(1730635200, calendar.Day, "America/Havana", 1730606400, 61200)    // midnight twice: the first
	f(1700000000, calendar.Year, "UTC", 1672531200, 4067200)
	f(-1, calendar.Day, "UTC", -86400, 1)

	// Samoa skipped 30 December 2011: the 29th ends where the 31st begins.
	samoa := zone(t, "Pacific/Apia")
	on29th := time.Date(2011, 12, 29, 12, 0, 0, 0, samoa).Unix()
	_, end := calendar.Window(samoa, calendar.Day, on29th)
	if start, _ := calendar.Window(samoa, calendar.Day, end); start != end ||
		time.Unix(start, 0).In(samoa).Format(time.DateOnly) != "2011-12-31" {
		t.Errorf("the window after 29 December begins %v", time.Unix(start, 0).In(samoa))
	}
	// Newfoundland's clocks went back at 00:01: the minute after midnight had begun the day already.
	john := zone(t, "America/St_Johns")
	back := time.Date(2010, 11, 7, 2, 31, 0, 0, time.UTC).Unix() // 00:01 becomes 23:01 of the 6th
	if start, end := calendar.Window(john, calendar.Day, back+60); start != back-60 || end-start != 25*3600 {
		t.Errorf("the day of the change is %d to %d, want from %d and 25 hours", start, end, back-60)
	}
}

func TestZone(t *testing.T) {
	for _, name := range []string{"", "Local", "Europe/Berln", "+02:00", "../etc/passwd", "right/UTC", "posix/UTC",
		"utc "} {
		if z, err := calendar.Zone(name); err == nil {
			t.Errorf("%q is %v, want an error", name, z)
		}
	}
}

func TestSource(t *testing.T) {
	t.Setenv("ZONEINFO", "")
	system := calendar.Source("Europe/Berlin")
	if system != calendar.FromSystem && system != calendar.Embedded {
		t.Errorf("source %q", system)
	}
	if got := calendar.Source("No/Where"); got != calendar.Embedded {
		t.Errorf("a zone that no place has is said to be from %q", got)
	}
	dir := t.TempDir()
	t.Setenv("ZONEINFO", dir)
	if got := calendar.Source("Europe/Berlin"); got != system {
		t.Errorf("an empty $ZONEINFO makes it %q, want %q", got, system)
	}
	must.Succeed(t, os.Mkdir(filepath.Join(dir, "Europe"), 0o777))
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "Europe/Berlin"), nil, 0o666))
	if got := calendar.Source("Europe/Berlin"); got != calendar.FromEnvironment {
		t.Errorf("source %q, want %q", got, calendar.FromEnvironment)
	}
}

// Windows tile time: each ends where the next begins, contains the instants that it is looked up by, and its first
// instant has a local date that is its first day or later, the instant before an earlier one. For all zones that the
// machine has, else some with remarkable changes, from 1970 to 2037; under race for a random third of them.
func TestWindow_tilesRandom(t *testing.T) {
	from, to := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), time.Date(2038, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	names := allZones(t)
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:chaos.Runs(len(names))] {
		z := zone(t, name)
		for _, u := range []calendar.Unit{calendar.Day, calendar.Week, calendar.Month, calendar.Year} {
			for at, follows := from, false; at < to; {
				start, end := calendar.Window(z, u, at)
				if start > at || end <= at || follows && start != at {
					t.Fatalf("%s, %v: the window of %d is %d to %d", name, u, at, start, end)
				}
				if s, e := calendar.Window(z, u, end-1); s != start || e != end {
					t.Fatalf("%s, %v: the last second of %d to %d lies in %d to %d", name, u, start, end, s, e)
				}
				date := time.Unix(start, 0).In(z).Format(time.DateOnly)
				if before := time.Unix(start-1, 0).In(z).Format(time.DateOnly); before >= date {
					t.Fatalf("%s, %v: %d begins a window, on %s, a second after %s", name, u, start, date, before)
				}
				at, follows = end, true
				// Days without a change of the clocks in or around them are all alike: look at one in ten.
				if _, change := time.Unix(end, 0).In(z).ZoneBounds(); u == calendar.Day &&
					(change.IsZero() || change.Unix()-end > 15*86400) {
					at, follows = end+10*86400, false
				}
			}
		}
	}
}

// allZones are the names of the system's zones, or some.
func allZones(t *testing.T) (names []string) {
	const dir = "/usr/share/zoneinfo"
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		name := strings.TrimPrefix(path, dir+"/")
		if _, err := calendar.Zone(name); err == nil && strings.Contains(name, "/") {
			names = append(names, name)
		}
		return nil
	})
	if len(names) > 0 {
		t.Logf("%d zones of the system", len(names))
		return names
	}
	return []string{"UTC", "Europe/Berlin", "Africa/Cairo", "America/Havana", "America/Sao_Paulo", "America/St_Johns",
		"America/Asuncion", "Antarctica/Troll", "Asia/Beirut", "Asia/Gaza", "Asia/Kathmandu", "Asia/Manila",
		"Asia/Tehran", "Atlantic/Azores", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Enderbury",
		"Pacific/Kiritimati", "Pacific/Kwajalein"}
}
