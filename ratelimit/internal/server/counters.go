package server

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"gatehouse/ratelimit/internal/printable"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/service"
)

// counters serves the page /counters: GET shows a descriptor's counters in the store; DELETE resets them and is logged.
func (d *debugPort) counters(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	descriptor, err := counterQuery(q)
	if err != nil {
		writeError(w, http.StatusBadRequest, "INVALID_ARGUMENT", err.Error())
		return
	}
	domain := q.Get("domain")
	var report *service.CounterReport
	if r.Method == http.MethodDelete {
		report, err = d.Service.ResetCounters(r.Context(), domain, descriptor)
		d.logReset(r, domain, descriptor, report, err)
	} else {
		report, err = d.Service.Counters(r.Context(), domain, descriptor)
	}
	if err != nil {
		writeServiceError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.Encode(report)
}

func writeServiceError(w http.ResponseWriter, err error) {
	if none, ok := errors.AsType[*service.NoLimitError](err); ok {
		writeError(w, http.StatusNotFound, "NOT_FOUND", printable.Text(none.Error()))
		return
	}
	if err == service.ErrNoRules {
		writeError(w, http.StatusServiceUnavailable, "UNAVAILABLE", err.Error())
		return
	}
	writeRefusal(w, err)
}

// logReset logs that a client has reset counters, or has tried to while the store did not answer. The log line names
// the client and the counters, and contains values of requests.
func (d *debugPort) logReset(r *http.Request, domain string, descriptor *rls.Descriptor, report *service.CounterReport,
	err error) {
	message := "counters reset"
	if report.Deleted == nil || *report.Deleted == 0 {
		if refusal, ok := errors.AsType[*service.Refusal](err); !ok || refusal.Err == nil {
			return // nothing was deleted, and not because the store failed
		}
		message += " failed" // the store may have executed the deletion all the same
	}
	var used []string
	for _, l := range report.Limits {
		used = append(used, strconv.FormatInt(l.Used, 10))
	}
	attributes := []any{slog.String("by", r.RemoteAddr), slog.String("domain", cut(domain)),
		slog.String("descriptor", cut(descriptorText(descriptor.Entries)))}
	if len(report.Limits) > 0 {
		attributes = append(attributes, slog.String("rule", cut(report.Limits[0].Rule)),
			slog.String("used", strings.Join(used, ",")))
	}
	if err != nil { // some counters of a rate_limits list may be deleted all the same
		attributes = append(attributes, slog.String("error", err.Error()))
	}
	d.Log.Warn(message, attributes...)
}

// descriptorText returns the descriptor as key=value pairs, the form that the page's parameter descriptor has.
func descriptorText(entries []rls.Entry) string {
	var pairs []string
	for _, e := range entries {
		pairs = append(pairs, e.Key+"="+e.Value)
	}
	return strings.Join(pairs, ",")
}

// maxLogged is the greatest number of bytes that a log line has of one text of a request.
const maxLogged = 256

// cut shortens a text of a request to maxLogged bytes.
func cut(s string) string {
	s, shorter := printable.Cut(s, maxLogged)
	if shorter {
		s += "…"
	}
	return printable.Text(s)
}

// counterQuery parses the parameters of the page /counters.
func counterQuery(q url.Values) (*rls.Descriptor, error) {
	if err := known(q, "domain", "descriptor", "descriptor_json", "limit"); err != nil {
		return nil, err
	}
	text, asJSON := q.Get("descriptor"), q.Get("descriptor_json")
	switch {
	case q.Get("domain") == "":
		return nil, errors.New("domain is missing: /counters?domain=D&descriptor=k=v,k2=v2")
	case (text == "") == (asJSON == ""):
		return nil, errors.New("one of descriptor=k=v,k2=v2 and descriptor_json={…} is needed")
	}
	var d rls.Descriptor
	var err error
	if text != "" {
		d.Entries, err = ParseDescriptor(text)
	} else {
		d, err = ParseDescriptorJSON(asJSON)
	}
	if err != nil {
		return nil, errors.New("descriptor: " + err.Error())
	}
	if limit := q.Get("limit"); limit != "" {
		if d.HasLimit {
			return nil, errors.New("limit stands twice: descriptor_json has one too")
		}
		if d.Limit, err = ParseLimit(limit); err != nil {
			return nil, errors.New("limit: " + err.Error())
		}
		d.HasLimit = true
	}
	if d.HasLimit && d.Limit.Unit.Seconds() == 0 {
		return nil, errors.New("limit: its unit is unknown")
	}
	return &d, nil
}
