package server

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/rls"
)

// recent serves the page that lists the descriptors that were refused last, and the descriptors that no rule matched
// last.
func (d *debugPort) recent(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if err := known(q, "domain", "format"); err != nil {
		writeError(w, http.StatusBadRequest, "INVALID_ARGUMENT", err.Error())
		return
	}
	refused, unmatched, on := d.Service.Recent(q.Get("domain"))
	if !on {
		writeError(w, http.StatusNotFound, "NOT_FOUND", "off: DEBUG_RECENT_SIZE is 0")
		return
	}
	var b bytes.Buffer
	writeRecent(&b, "refused", refused)
	writeRecent(&b, "unmatched", unmatched)
	respond(w, r, b.String(), struct {
		Refused   observe.RecentList `json:"refused"`
		Unmatched observe.RecentList `json:"unmatched"`
	}{refused, unmatched})
}

func writeRecent(b *bytes.Buffer, title string, l observe.RecentList) {
	fmt.Fprintf(b, "# %s, newest first; %d skipped\n", title, l.Skipped)
	for _, r := range l.Descriptors {
		fmt.Fprintf(b, "%s %s %s", r.At.Format(time.RFC3339), Visible(r.Domain), VisibleEntries(r.Entries))
		if r.Rule != "" {
			fmt.Fprintf(b, " by %s (%s)", Visible(r.Rule), r.File)
		}
		switch {
		case r.Limit != nil && r.Unit != "":
			fmt.Fprintf(b, " limit %s, reset in %d s", r.LimitView.Text(*r.Limit, ""), *r.Reset)
		case r.Limit != nil:
			fmt.Fprintf(b, " limit %d, reset in %d s", *r.Limit, *r.Reset)
		}
		if r.Outcome != "" {
			fmt.Fprintf(b, " %s", r.Outcome)
		}
		if r.NearestKey != "" {
			fmt.Fprintf(b, ", nearest key %s", Visible(r.NearestKey))
		}
		fmt.Fprintf(b, ", hits %d", r.Hits)
		b.WriteString("\n")
	}
}

// top serves the page that lists the keys with most hits in the last whole minute.
func (d *debugPort) top(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if err := known(q, "domain", "format"); err != nil {
		writeError(w, http.StatusBadRequest, "INVALID_ARGUMENT", err.Error())
		return
	}
	top := d.Service.Observer().Top()
	if top == nil {
		writeError(w, http.StatusNotFound, "NOT_FOUND", "off: DEBUG_TOP_KEYS is 0")
		return
	}
	from, keys := top.Read(d.Service.Now(), q.Get("domain"))
	if keys == nil {
		keys = []observe.TopKey{}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# hits from %s, for a minute; at most so much too high; key; rule\n", from.Format(time.RFC3339))
	for _, k := range keys {
		fmt.Fprintf(&b, "%d %d %s %s %s\n", k.Hits, k.Error, Visible(k.Domain), VisibleEntries(k.Entries),
			Visible(k.Rule))
	}
	respond(w, r, b.String(), struct {
		From time.Time        `json:"from"`
		Keys []observe.TopKey `json:"keys"`
	}{from, keys})
}

// VisibleEntries returns the entries of a descriptor as key=value pairs, as ParseDescriptor reads them, with each text
// as Visible returns it.
func VisibleEntries(entries []rls.Entry) string {
	if len(entries) == 0 {
		return "(no entries)"
	}
	var parts []string
	for _, e := range entries {
		parts = append(parts, Visible(e.Key)+"="+Visible(e.Value))
	}
	return strings.Join(parts, ",")
}

// Visible returns a text of a request for a terminal. It quotes the text if its end would otherwise be unclear, or if
// it has characters that are not printable.
func Visible(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return strings.ContainsRune(` ,="\`, r) || !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
