package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// calling returns a context that gives the calls of this provider its name, for logs and metrics.
func (p *Provider) calling(ctx context.Context) context.Context {
	return p.http.WithTarget(ctx, "provider "+p.name)
}

// me calls the provider's profile endpoint and returns the answer.
func (s *signIn) me(ctx context.Context) (jsonObject, error) {
	path, query, _ := strings.Cut(s.row.profile, "?")
	var into jsonObject
	err := s.call(ctx, path, query, &into)
	return into, err
}

// call sends a GET with the access token to a path below the provider's API, and decodes the JSON answer.
func (s *signIn) call(ctx context.Context, path, query string, into any) error {
	header := http.Header{"Authorization": {"Bearer " + s.token.AccessToken}}
	for name, value := range s.header {
		header[name] = []string{value}
	}
	if s.proof != nil {
		more := map[string]string{}
		s.proof(s, more, header)
		for name, value := range more {
			if query != "" {
				query += "&"
			}
			query += name + "=" + url.QueryEscape(value)
		}
	}
	address := s.apiURL() + path
	if query != "" {
		address += "?" + query
	}
	return getJSON(ctx, s.http.Configured, address, header, into)
}

// getJSON sends a GET and decodes the answer, if its status is 200 to 299.
func getJSON(ctx context.Context, c *http.Client, address string, header http.Header, into any) error {
	body, resp, err := get(ctx, c, address, header)
	if err != nil {
		return withoutDescription(err)
	}
	if err := decode(body, into); err != nil {
		return fmt.Errorf("%s: %w", resp.Request.URL.Host, err)
	}
	return nil
}

// get sends a GET and returns the body and the response, if its status is 200 to 299. The response's Body is closed.
func get(ctx context.Context, c *http.Client, address string, header http.Header) ([]byte, *http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, nil, errors.New("the address of a call can't be read")
	}
	if header != nil {
		r.Header = header
	}
	r.Header.Set("Accept", "application/json")
	resp, err := c.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, nil, fmt.Errorf("%s answers %d", r.URL.Host, resp.StatusCode)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the answer of %s: %w", resp.Request.URL.Host, err)
	}
	return body, resp, nil
}
