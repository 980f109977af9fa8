! The closure is trained while the model in two scales runs: every rank steps its members, takes a step of training on them, and
! the mean over ranks of parameters and momentum is the step on all members at once, since SGD is linear in the gradient.
! mpiexec -n 2 ./train FOLDER MEMBERS STEPS
program train
  use, intrinsic :: iso_c_binding, only: c_double, c_float, c_intptr_t
  use, intrinsic :: iso_fortran_env, only: real64
  use mpi_f08
  use closure
  use lorenz96
  use network, only: load_network, p
  implicit none
  real(real64), parameter :: dt = 0.002_real64
  integer, parameter :: between = 10  ! steps of the model for one of training
  character(:), allocatable :: folder
  real(real64), allocatable :: x(:, :), y(:, :, :)
  real(c_float), allocatable :: columns(:, :, :), t(:, :)
  real(c_float) :: moments(closure_size_of_moments), loss
  real(c_double) :: count
  integer :: ranks, rank, members, steps, own, step, i, unit

  call MPI_Init()
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call read_arguments(folder, members, steps)
  if (modulo(members, ranks) /= 0) error stop "the number of ranks must divide that of the members"
  own = members/ranks
  call load_network(folder)
  allocate (x(n_large, own), t(n_large, own), y(n_small, n_large, own), columns(n_stencil, n_large, own))
  do i = 1, own
    x(:, i) = initial(rank*own + i)
    y(:, :, i) = 0.1_real64*spread(sin([(real(step*(rank*own + i), real64), step=1, n_small)]), 2, n_large)
  end do
  do i = 1, 1000  ! until the small variables follow the large ones
    call step_two_scales(x, y, dt)
  end do

  moments = 0
  count = 0
  do step = 1, steps
    do i = 1, between
      call step_two_scales(x, y, dt)
    end do
    call stencils(x, columns)
    do i = 1, own
      t(:, i) = real(subgrid(y(:, :, i))/subgrid_scale, c_float)
    end do
    loss = closure_step(int(n_large*own, c_intptr_t), columns, t, p, moments, count)
    call average(p)
    call average(moments)
    call average(loss)
    if (rank == 0 .and. (step == 1 .or. modulo(step, max(1, steps/10)) == 0)) print "(i0, 1x, es12.5)", step, loss
  end do

  if (rank == 0) then
    open (newunit=unit, file=folder//"/trained.bin", access="stream", form="unformatted", status="replace")
    write (unit) p
    close (unit)
  end if
  call MPI_Finalize()

contains

  subroutine average(values)
    real(c_float), intent(inout) :: values(..)
    select rank (values)
    rank (0)
      call MPI_Allreduce(MPI_IN_PLACE, values, 1, MPI_REAL, MPI_SUM, MPI_COMM_WORLD)
      values = values/ranks
    rank (1)
      call MPI_Allreduce(MPI_IN_PLACE, values, size(values), MPI_REAL, MPI_SUM, MPI_COMM_WORLD)
      values = values/ranks
    end select
  end subroutine average
end program train
