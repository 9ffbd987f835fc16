// Copyright the sax authors. SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminpb "sax/proto/admin"
)

const (
	dialTimeout = 10 * time.Second
	retryPeriod = 200 * time.Millisecond
)

// cellAdmin calls whichever admin server leads a cell.
type cellAdmin struct {
	root, cell string
	conn       *grpc.ClientConn
}

// call runs an RPC. When nobody answers, or the server is busy, it reads the location anew and asks
// again until the context ends.
func (a *cellAdmin) call(ctx context.Context, ask func(adminpb.AdminClient) error) error {
	for {
		err := a.once(ctx, ask)
		if code := status.Code(err); code != codes.Unavailable && code != codes.ResourceExhausted {
			return err
		}
		a.close()
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryPeriod):
		}
	}
}

func (a *cellAdmin) once(ctx context.Context, ask func(adminpb.AdminClient) error) error {
	if a.conn == nil {
		address, err := adminAddress(a.root, a.cell)
		if err != nil {
			return err
		}
		if a.conn, err = dial(ctx, address); err != nil {
			return err
		}
	}
	return ask(adminpb.NewAdminClient(a.conn))
}

func (a *cellAdmin) close() {
	if a.conn != nil {
		a.conn.Close()
		a.conn = nil
	}
}

// dial connects; a server that does not answer in time is unavailable.
func dial(ctx context.Context, address string) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := grpc.DialContext(ctx, address, grpc.WithInsecure(), grpc.WithBlock())
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "%s: %v", address, err)
	}
	return conn, nil
}
