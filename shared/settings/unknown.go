package settings

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// serviceLink matches the variables that Kubernetes sets in every container for each service in its namespace.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_.*)?)?)$`)

// serviceManager has the variables that systemd sets for a daemon.
var serviceManager = []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}

// unknown warns about variables that look like this daemon's but are not: names with one of its prefixes, and names
// that differ in at most two letters from a longer name, current or old.
func (r *Report) unknown(fields []Field, o Options) {
	var known []string
	for _, f := range fields {
		known = append(known, f.Name)
		if f.Secret {
			known = append(known, f.Name+fileSuffix)
		}
	}
	known = append(known, o.Known...)
	old := r.oldNames(o)
	before := slices.Sorted(maps.Keys(old))
	for _, name := range r.Names() {
		if slices.Contains(serviceManager, name) || Matches(name, known) || hasPrefix(name, o.Foreign) ||
			serviceLink.MatchString(name) {
			continue
		}
		near, distance := nearest(name, known)
		if was, d := nearest(name, before); d < distance && d <= 2 && len(name) >= 8 {
			r.Warn("%s is no setting of this program and has no effect; did you mean %s, the old name of %s?",
				name, was, old[was])
			continue
		}
		switch {
		case distance <= 2 && len(name) >= 8, hasPrefix(name, o.Prefixes) && distance <= max(3, len(name)/4):
			r.Warn("%s is no setting of this program and has no effect; did you mean %s?", name, near)
		case hasPrefix(name, o.Prefixes):
			r.Warn("%s is no setting of this program and has no effect", name)
		}
	}
}

// oldNames maps old names to current names. For a secret, it also maps the old name with _FILE to the current name with
// _FILE. It leaves out old names that end in *.
func (r *Report) oldNames(o Options) map[string]string {
	old := map[string]string{}
	for _, a := range o.Aliases {
		if strings.HasSuffix(a.Old, "*") {
			continue
		}
		old[a.Old] = a.New
		if r.fields[a.New].Secret {
			old[a.Old+fileSuffix] = a.New + fileSuffix
		}
	}
	return old
}

// Matches reports whether a name is in the list, or begins like an item of the list that ends in *.
func Matches(name string, known []string) bool {
	return slices.ContainsFunc(known, func(k string) bool {
		prefix, open := strings.CutSuffix(k, "*")
		return name == k || open && strings.HasPrefix(name, prefix)
	})
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// Nearest returns the known name that a misspelled name probably stands for; "" if no name is near.
func Nearest(name string, known []string) string {
	if near, d := nearest(name, known); d <= max(3, len(name)/4) {
		return near
	}
	return ""
}

// nearest returns the known name that takes the fewest changed letters, and their number. Among equals it returns the
// first.
func nearest(name string, known []string) (string, int) {
	best, fewest := "", len(name)
	var row []int
	for _, k := range known {
		if strings.HasSuffix(k, "*") || max(len(name)-len(k), len(k)-len(name)) >= fewest {
			continue
		}
		row = slices.Grow(row[:0], len(k)+1)[:len(k)+1]
		if d := distance(name, k, row); d < fewest {
			best, fewest = k, d
		}
	}
	return best, fewest
}

// distance returns how many letters must be inserted, deleted or replaced to turn a into b. row is scratch memory of
// len(b)+1 elements.
func distance(a, b string, row []int) int {
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
