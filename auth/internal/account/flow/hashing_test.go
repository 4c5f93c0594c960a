package flow

import (
	"context"
	"errors"
	"testing"
	"time"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/password"
)

func TestHashing_late(t *testing.T) {
	params, err := password.ParseParams("bcrypt:4")
	if err != nil {
		t.Fatal(err)
	}
	w := password.NewWorkers(password.Options{Workers: 1, Params: params})
	defer w.Close()
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	_, hashErr := w.Hash(late, "sesame")
	_, _, checkErr := w.Check(late, "", "sesame")
	for _, err := range []error{hashErr, checkErr} {
		r, ok := errors.AsType[*refusal.Refusal](refusal.Failure("hash password", err))
		if !ok || r.Kind != refusal.KindUnavailable || r.Code != refusal.CodeOverCapacity || !r.Busy() || r.RetryAfter <= 0 {
			t.Errorf("%v is told as %+v", err, r)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Hash(gone, "sesame"); !errors.Is(err, context.Canceled) {
		t.Errorf("of a client who left: %v", err)
	}
}
