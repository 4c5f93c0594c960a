package hook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/outbound"
)

// sign returns the header webhook-signature: a signature for each secret, separated by spaces (Standard Webhooks,
// "Signature scheme").
func sign(secrets [][]byte, id string, at time.Time, body []byte) string {
	all := make([]string, len(secrets))
	for i, key := range secrets {
		mac := hmac.New(sha256.New, key)
		io.WriteString(mac, id+"."+strconv.FormatInt(at.Unix(), 10)+".")
		mac.Write(body)
		all[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(all, " ")
}

// errRetry means that the receiver has sent Retry-After, so that the call is repeated at once. The error's text is
// stored in the outbox.
var errRetry = errors.New("asked to come again")

// post calls a target that is an HTTP endpoint, at most three times within five seconds. Each attempt has its own
// webhook-id.
func (s *Set) post(ctx context.Context, t Target, body []byte) ([]byte, error) {
	within, cancel := context.WithTimeout(ctx, s.o.Budget)
	defer cancel()
	for i := 1; ; i++ {
		out, err := s.attempt(within, t, body)
		var e *Error
		switch {
		case err == nil:
			return out, nil
		case errors.As(err, &e):
			return nil, err
		case within.Err() != nil || timedOut(err):
			return nil, timeout(s.o.Budget, err)
		case i == attempts:
			return nil, &Error{Status: 422, Code: CodeTimeoutAfterRetry,
				Msg: "Failed to reach hook after maximum retries",
				Err: err}
		case errors.Is(err, errRetry):
			continue
		}
		select {
		case <-time.After(s.o.Pause):
		case <-within.Done():
			return nil, timeout(s.o.Budget, err)
		}
	}
}

func timedOut(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// attempt makes one HTTP request. An error that is an *Error is final; after any other error, post may try again.
func (s *Set) attempt(ctx context.Context, t Target, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return nil, failed("Error invoking hook", errors.New("the request cannot be made"))
	}
	id, now := uuid.NewString(), s.o.Now()
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	r.Header.Set("webhook-id", id)
	r.Header.Set("webhook-timestamp", strconv.FormatInt(now.Unix(), 10))
	r.Header.Set("webhook-signature", sign(t.secrets, id, now, body))
	resp, err := s.clients.Configured.Do(r)
	switch {
	case errors.Is(err, outbound.ErrTooLarge):
		return nil, overSize()
	case err != nil:
		return nil, outbound.Quiet(r, err)
	}
	defer resp.Body.Close()
	return read(resp)
}

// read reads the body of a response and checks its status and content type.
func read(resp *http.Response) ([]byte, error) {
	switch resp.StatusCode {
	case http.StatusNoContent:
		return nil, nil
	case http.StatusOK, http.StatusAccepted:
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if resp.Header.Get("Retry-After") != "" {
			return nil, fmt.Errorf("%w (status %d)", errRetry, resp.StatusCode)
		}
		return nil, failed("Service currently unavailable due to hook", fmt.Errorf("status %d", resp.StatusCode))
	case http.StatusBadRequest:
		return nil, failed("Invalid payload sent to hook", nil)
	case http.StatusUnauthorized:
		return nil, failed("Hook requires authorization token", nil)
	default:
		return nil, failed(fmt.Sprintf("Unexpected status code returned from hook: %d", resp.StatusCode), nil)
	}
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, &Error{Status: 400, Code: CodeContentType,
			Msg: "Invalid JSON response. Expected content-type application/json"}
	}
	out, err := io.ReadAll(resp.Body)
	if errors.Is(err, outbound.ErrTooLarge) {
		return nil, overSize()
	}
	return out, err
}
