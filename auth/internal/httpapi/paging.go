package httpapi

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/store"
)

const (
	defaultPerPage = 50
	maxPerPage     = 1000
)

// page is the page of a list that an administrator requests. number counts from 1.
type page struct{ number, size int }

// page parses the query's page and per_page. The client library always sends both, but often empty.
func (c *call) page() (p page, err error) {
	if p.number, err = c.count("page", 1, 1<<31-1); err != nil {
		return p, err
	}
	p.size, err = c.count("per_page", defaultPerPage, maxPerPage)
	return p, err
}

// knownParams refuses query parameters with other names, since a misspelled filter would list everything. It accepts
// apikey and names with a leading underscore, which are for proxies and caches.
func (c *call) knownParams(names ...string) error {
	c.parseQuery()
	var unknown []string
	for name := range c.query {
		if name != "apikey" && !strings.HasPrefix(name, "_") && !slices.Contains(names, name) {
			unknown = append(unknown, fmt.Sprintf("%.50q", cleanText(name, 200)))
		}
	}
	if unknown == nil {
		return nil
	}
	slices.Sort(unknown)
	return invalidRequest(fmt.Sprintf("Unknown query parameters: %s; known are %s",
		strings.Join(unknown[:min(len(unknown), 10)], ", "), strings.Join(names, ", ")))
}

// count parses a positive number in the query. It returns the parameter most if the number is larger, and the parameter
// absent if the query has no number of this name.
func (c *call) count(name string, absent, most int) (int, error) {
	text := c.param(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.ParseUint(text, 10, 31) // for a larger number, ParseUint returns the largest possible one
	if err != nil && !errors.Is(err, strconv.ErrRange) || n == 0 {
		return 0, invalidRequest(fmt.Sprintf("Bad Pagination Parameters: %s must be a number from 1 on", name))
	}
	return min(int(n), most), nil
}

// paramID parses a UUID in the query. It returns the zero UUID if the parameter is missing.
func (c *call) paramID(name string) (uuid.UUID, error) {
	text := c.param(name)
	if text == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return uuid.Nil, invalidRequest(name + " must be an UUID")
	}
	return id, nil
}

func (p page) offset() int { return (p.number - 1) * p.size }

// links sets the headers X-Total-Count and Link. The client library takes the character after the first "=" in a link's
// URL for the page, so page is the first parameter. It also requires quotes around rel.
func (c *call) links(p page, total int) {
	last := (total + p.size - 1) / p.size
	rest := url.Values{}
	for key, v := range c.r.URL.Query() {
		if key != "page" {
			rest[key] = v
		}
	}
	tail := ""
	if len(rest) > 0 {
		tail = "&" + rest.Encode()
	}
	var links []string
	link := func(n int, rel string) {
		links = append(links, fmt.Sprintf("<%s?page=%d%s>; rel=%q", c.r.URL.EscapedPath(), n, tail, rel))
	}
	if p.number < last {
		link(p.number+1, "next")
	}
	link(last, "last")
	h := c.Header()
	h.Set("X-Total-Count", strconv.Itoa(total))
	h.Set("Link", strings.Join(links, ", "))
}

// after parses the query's cursor and returns the position after which the list continues; zero if there is no cursor.
func (c *call) after() (at store.Cursor, err error) {
	text := c.param("cursor")
	if text == "" {
		return at, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err == nil && len(b) == 24 {
		at.CreatedAt = time.UnixMicro(int64(binary.BigEndian.Uint64(b))).UTC()
		copy(at.ID[:], b[8:])
		if y := at.CreatedAt.Year(); y >= 1 && y <= 9999 {
			return at, nil
		}
	}
	return store.Cursor{}, invalidRequest(
		"Bad Pagination Parameters: cursor is not one that this service gave out")
}

// cursor returns the text of a cursor for the position after a row: the row's time in microseconds, and its ID.
func cursor(at time.Time, id uuid.UUID) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(at.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(append(b, id[:]...))
}

// appendPagination appends the cursor of the next page and ends the object. next is "" on the last page.
func appendPagination(b []byte, next string) []byte {
	b = append(b, `,"pagination":{`...)
	if next != "" {
		b = append(jsontext.AppendString(append(b, `"next_cursor":`...), next), ',')
	}
	b = strconv.AppendBool(append(b, `"has_more":`...), next != "")
	return append(b, '}', '}')
}
